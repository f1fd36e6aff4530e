"""Drafters for these tests: the published sizes, and small random ones."""

import copy

import ml_dtypes
import numpy as np

from kimi.checkpoint import names
from kimi.config import DraftConfig, ModelConfig
from tests.unit.checkpoint.build import DRAFT
from tests.unit.kernels.build import published, small_32


def draft_config(window: int | None = None, **sizes: object) -> DraftConfig:
    """The small K3's drafter with other sizes; `taps`, `block` and `rank` are short names."""
    data = copy.deepcopy(DRAFT)
    layer = data["transformer_layer_config"]
    short = {"taps": "aux_hidden_state_layer_ids", "block": "block_size", "rank": "markov_rank"}
    for name, value in sizes.items():
        target = data if name in short or name == "mask_token_id" else layer
        target[short.get(name, name)] = value
    data["draft_vocab_size"] = layer["vocab_size"]
    kind = "full_attention" if window is None else "sliding_attention"
    layer |= dict(
        sliding_window=window,
        layer_types=[kind] * layer["num_hidden_layers"],
        max_window_layers=layer["num_hidden_layers"],
        use_sliding_window=window is not None,
    )
    return DraftConfig.from_dict(data)


def published_draft() -> tuple[DraftConfig, ModelConfig]:
    """The public drafter of the public K3."""
    return DraftConfig.published(), published()


def draft_32() -> tuple[DraftConfig, ModelConfig]:
    """A drafter that 32 ranks can share, with widths that are nowhere a whole panel."""
    config = draft_config(
        200, vocab_size=2112, hidden_size=96, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=32, num_key_value_heads=8, head_dim=16, rank=40, taps=[0, 1, 3],
    )  # fmt: skip
    return config, small_32()


def random_drafter(config: DraftConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Random bfloat16 tensors whose products stay near one."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, spec in names.draft_tensors(config, names.DRAFT_OPTIONAL).items():
        shape = spec.shapes[0]
        value = rng.standard_normal(shape, np.float32)
        if "norm" in name:
            value = 1 + 0.1 * value
        elif len(shape) == 2 and "embed" not in name and "w1" not in name:
            value *= shape[1] ** -0.5
        found[name] = value.astype(ml_dtypes.bfloat16)
    return found
