"""Configuration of a DSpark drafter (`speculators` layout), read from its `config.json`."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi.config.generic import GENERIC
from kimi.config.model import ModelConfig
from kimi.errors import ConfigError
from kimi.fields import Fields, load_json

PUBLISHED = Path(__file__).with_name("kimi_k3_dspark.json")  # its public config.json
_FULL, _SLIDING = "full_attention", "sliding_attention"
_MAX_LAYERS = 1 << 10  # their tensors are listed before files are read
# Defaults of Qwen3, for absent fields.
_QWEN3 = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
}  # fmt: skip
_QWEN3_THETA, _QWEN3_WINDOW, _QWEN3_FULL_LAYERS = 10000.0, 4096, 28


@dataclass(frozen=True)
class DraftConfig:
    """A DSpark drafter (`speculators` layout).

    Attributes:
      vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim, rms_norm_eps, max_position_embeddings: of the transformer.
      rope_theta: base of the half-split rotary embedding.
      sliding_window: context positions before the anchor that a block attends to; None for all.
      aux_hidden_state_layer_ids: taps. Id i is the prefix stream entering 0-based layer i of the
        target, which is the stream after layer i - 1.
      block_size: rows of a block: the anchor and block_size - 1 masks; as many candidates.
      mask_token_id: id embedded in the rows after the anchor.
      markov_rank: rank of the correction of each row's logits by the token before it.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    sliding_window: int | None
    aux_hidden_state_layer_ids: tuple[int, ...]
    block_size: int
    mask_token_id: int
    markov_rank: int

    @property
    def causal_block(self) -> bool:
        """Whether a block's rows attend to earlier rows only; they do if there is a window."""
        return self.sliding_window is not None

    @property
    def tap_width(self) -> int:
        """Width of the concatenated taps that `fc` reads."""
        return self.hidden_size * len(self.aux_hidden_state_layer_ids)

    @classmethod
    def published(cls) -> "DraftConfig":
        """The configuration of the public Kimi K3's drafter, without its weights."""
        return cls.from_dict(load_json(PUBLISHED), str(PUBLISHED))

    @classmethod
    def from_dict(cls, data: dict[str, Any], where: str = "config.json") -> "DraftConfig":
        """Validates the parsed config.json of a drafter.

        Absent fields have the defaults of their schema: `speculators`, or Qwen3 in
        `transformer_layer_config`.

        Raises:
          ConfigError: a field is missing, unsupported or contradicts another; the message names it.
        """
        top = Fields(data, where)
        top.fixed("speculators_model_type", "dspark", required=not is_drafter(data))
        top.fixed("markov_head_type", "vanilla")
        top.fixed("enable_confidence_head", True)
        top.fixed("confidence_head_with_markov", True)
        top.fixed("sample_from_anchor", True)
        top.fixed("sliding_window_non_causal", False)
        top.fixed("tie_word_embeddings", False)
        layer = top.child("transformer_layer_config")
        config = layer.build(
            cls,
            _QWEN3,
            rope_theta=_rope_theta(layer),
            sliding_window=_window(layer),
            aux_hidden_state_layer_ids=top.integers("aux_hidden_state_layer_ids"),
            block_size=top.integer("block_size", low=2, default=8),
            mask_token_id=top.integer("mask_token_id", low=0),
            markov_rank=top.integer("markov_rank", default=256),
        )
        layer.fixed("model_type", "qwen3", required=True)
        layer.fixed("hidden_act", "silu")
        layer.fixed("attention_bias", False)
        layer.fixed("tie_word_embeddings", False)
        _check_draft_sizes(config, top, layer)
        layer.finish(GENERIC)
        top.finish(GENERIC)
        return config

    @classmethod
    def from_dir(cls, path: str | os.PathLike[str]) -> "DraftConfig":
        """Reads `path`/config.json. Raises ConfigError."""
        file = Path(path) / "config.json"
        return cls.from_dict(load_json(file), str(file))

    def check_target(self, target: ModelConfig) -> None:
        """Raises ConfigError if this drafter was not made for `target`."""
        for name in ("vocab_size", "hidden_size"):
            ours, theirs = getattr(self, name), getattr(target, name)
            if ours != theirs:
                raise ConfigError(
                    f"drafter: {name}: expected the target's {theirs}, found {ours}: "
                    "this drafter belongs to another model"
                )
        last = target.num_hidden_layers
        for tap in self.aux_hidden_state_layer_ids:
            if not 0 <= tap <= last:
                raise ConfigError(
                    f"drafter: aux_hidden_state_layer_ids: expected ids from 0 to {last} "
                    f"(the target's layers), found {tap}"
                )


def is_drafter(data: dict[str, Any]) -> bool:
    """Whether a parsed config.json is a drafter's, supported or not."""
    return "speculators_model_type" in data or "transformer_layer_config" in data


def _rope_theta(layer: Fields) -> float:
    layer.absent("rope_scaling")
    theta = layer.positive("rope_theta", default=_QWEN3_THETA)
    if not layer.has("rope_parameters"):
        return theta
    rope = layer.child("rope_parameters")
    rope.fixed("rope_type", "default")
    theta = rope.positive("rope_theta", default=theta)
    if layer.has("rope_theta") and layer.positive("rope_theta") != theta:
        raise layer.error("rope_theta", f"the same value as in rope_parameters ({theta})")
    return theta


def _window(layer: Fields) -> int | None:
    """The window that all layers share, or None if all attend to the whole context."""
    layers = layer.integer(
        "num_hidden_layers", high=_MAX_LAYERS, default=_QWEN3["num_hidden_layers"]
    )
    absent = None if "sliding_window" in layer.data else _QWEN3_WINDOW
    window = layer.integer("sliding_window", default=absent)
    kinds = layer.take("layer_types", None)
    if kinds is None:
        full = layer.integer("max_window_layers", low=0, default=_QWEN3_FULL_LAYERS)
        slides = layer.fixed("use_sliding_window", False, True) and window is not None
        kinds = [_SLIDING if slides and i >= full else _FULL for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or kinds != kinds[:1] * layers:
        raise layer.error("layer_types", f"{layers} times one and the same kind")
    if kinds[0] == _FULL:
        return None
    if kinds[0] != _SLIDING:
        raise layer.error("layer_types", f"{_FULL!r} or {_SLIDING!r}")
    if window is None:
        raise layer.error("sliding_window", "an integer, as layer_types are sliding_attention")
    return window


def _check_draft_sizes(c: DraftConfig, top: Fields, layer: Fields) -> None:
    # If it is absent, the shapes of the tensors are checked instead.
    if top.integer("draft_vocab_size", default=c.vocab_size) != c.vocab_size:
        raise top.error("draft_vocab_size", f"the transformer's vocab_size ({c.vocab_size})")
    if c.mask_token_id >= c.vocab_size:
        raise top.error("mask_token_id", f"an id below vocab_size ({c.vocab_size})")
    if not c.aux_hidden_state_layer_ids:
        raise top.error("aux_hidden_state_layer_ids", "at least one layer id")
    if c.num_attention_heads % c.num_key_value_heads:
        raise layer.error("num_key_value_heads", f"a divisor of {c.num_attention_heads} heads")
    if c.head_dim % 2:
        raise layer.error("head_dim", "an even number (half-split rotary)")
