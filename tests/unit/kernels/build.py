"""Models for these tests: the published sizes, and a small one that 32 ranks can share."""

import copy
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from kimi.checkpoint import names
from kimi.config import ModelConfig
from tests.unit.checkpoint.build import TARGET

F32 = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")


def published() -> ModelConfig:
    """The sizes of the public K3."""
    return ModelConfig.published()


def small_32() -> ModelConfig:
    """A model that 32 ranks can share, with widths that are nowhere a whole panel."""
    data = copy.deepcopy(TARGET)
    text = data["text_config"]
    text |= dict(
        vocab_size=2112, hidden_size=96, num_hidden_layers=3, num_attention_heads=32,
        num_key_value_heads=32, intermediate_size=160, q_lora_rank=64, kv_lora_rank=80,
        qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=20, num_experts=32,
        num_experts_per_token=3, moe_intermediate_size=64, routed_expert_hidden_size=160,
        num_shared_experts=1,
    )  # fmt: skip
    text["linear_attn_config"] |= dict(
        full_attn_layers=[2], kda_layers=[1, 3], num_heads=64, head_dim=32
    )
    return ModelConfig.from_dict(data)


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """A checkpoint of random bits: finite floats in the published dtypes, codes and scales."""
    rng = np.random.default_rng(seed)
    return {n: _random(rng, n, spec) for n, spec in target_tensors(config)}


def target_tensors(config: ModelConfig) -> Iterator[tuple[str, names.TensorSpec]]:
    specs = names.target_tensors(config, ("language_model.",))
    return iter(specs.items())


def _random(rng, name, spec):
    shape = spec.shapes[0]
    if name.endswith("weight_packed"):
        return rng.integers(0, 256, shape, np.uint8)
    if name.endswith("weight_scale"):
        return rng.integers(118, 126, shape, np.uint8)
    dtype = np.float32 if name.endswith(F32) else ml_dtypes.bfloat16
    return rng.standard_normal(shape, np.float32).astype(dtype)
