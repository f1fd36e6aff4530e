"""Checkpoints in files for these tests."""

import copy
from pathlib import Path

from kimi.checkpoint import Checkpoint
from tests.unit.checkpoint.build import TARGET, write_folder
from tests.unit.kernels.build import random_tensors, small_32


def small_data() -> dict:
    """The config.json of `small_32`."""
    data = copy.deepcopy(TARGET)
    data["text_config"] |= dict(
        vocab_size=2112, hidden_size=96, num_hidden_layers=3, num_attention_heads=32,
        num_key_value_heads=32, intermediate_size=160, q_lora_rank=64, kv_lora_rank=80,
        qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=20, num_experts=32,
        num_experts_per_token=3, moe_intermediate_size=64, routed_expert_hidden_size=160,
        num_shared_experts=1,
    )  # fmt: skip
    data["text_config"]["linear_attn_config"] |= dict(
        full_attn_layers=[2], kda_layers=[1, 3], num_heads=64, head_dim=32
    )
    return data


def write_small(path: Path, seed: int = 0, shards: int = 3) -> Checkpoint:
    """A random model of `small_32`, its tensors dealt to shards in runs."""
    tensors = random_tensors(small_32(), seed)
    names = list(tensors)
    size = -(-len(names) // shards)
    parts = {
        f"model-{i:05d}.safetensors": {n: tensors[n] for n in names[i * size : (i + 1) * size]}
        for i in range(shards)
    }
    return Checkpoint(write_folder(path, small_data(), parts))
