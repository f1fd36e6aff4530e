"""A random model that is as small as the kernel's shapes allow, on two ranks."""

import copy

import numpy as np

from kimi.config import ModelConfig
from tests.unit.checkpoint.build import TARGET
from tests.unit.kernels.build import random_tensors


def small_config() -> ModelConfig:
    """Three layers: KDA with a dense MLP, MLA and KDA with experts."""
    data = copy.deepcopy(TARGET)
    text = data["text_config"]
    text |= dict(
        vocab_size=2048, hidden_size=128, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=128, q_lora_rank=128, kv_lora_rank=128,
        qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, num_experts=8,
        num_experts_per_token=2, moe_intermediate_size=64, routed_expert_hidden_size=128,
        num_shared_experts=1, attn_res_block_size=2,
    )  # fmt: skip
    text["linear_attn_config"] |= dict(
        full_attn_layers=[2], kda_layers=[1, 3], num_heads=2, head_dim=128
    )
    return ModelConfig.from_dict(data)


def config_for(ranks: int) -> ModelConfig:
    """The same layers, wide enough to be divided over `ranks` ranks."""
    data = copy.deepcopy(TARGET)
    text = data["text_config"]
    text |= dict(
        vocab_size=ranks * 64, hidden_size=ranks * 16, num_hidden_layers=3,
        num_attention_heads=ranks, num_key_value_heads=ranks, intermediate_size=ranks * 8,
        q_lora_rank=ranks * 4, kv_lora_rank=128, qk_nope_head_dim=16, qk_rope_head_dim=32,
        v_head_dim=16, num_experts=ranks * 2, num_experts_per_token=2,
        moe_intermediate_size=ranks * 16, routed_expert_hidden_size=ranks * 8,
        num_shared_experts=1, attn_res_block_size=2,
    )  # fmt: skip
    text["linear_attn_config"] |= dict(
        full_attn_layers=[2], kda_layers=[1, 3], num_heads=ranks, head_dim=128
    )
    return ModelConfig.from_dict(data)


def small_tensors(config: ModelConfig) -> dict[str, np.ndarray]:
    """Random weights whose products stay near one."""
    found = random_tensors(config)
    for name, value in found.items():
        if value.ndim == 2 and value.dtype != np.uint8 and "proj" in name:
            found[name] = (value.astype(np.float32) * value.shape[1] ** -0.5).astype(value.dtype)
    return found
