"""Configuration of Kimi K3's text model, read from `config.json`, validated, frozen.

Field names are those on disk; derived sizes are properties. A field whose value this library does
not support is an error, see `Fields`.
"""

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi.config.generic import GENERIC
from kimi.errors import ConfigError
from kimi.fields import Fields, load_json

LATENT_NORM_EPS = 1e-6  # q_a_layernorm and kv_a_layernorm are built without an eps argument
PUBLISHED = Path(__file__).with_name("kimi_k3.json")  # the text model of the public config.json
TARGET_PREFIX = "language_model."  # of tensor names
_FORMAT = "mxfp4-pack-quantized"
_SCALE_DTYPES = ("torch.uint8", "uint8", "torch.float8_e8m0fnu", "float8_e8m0fnu")  # synonyms
_LISTED_LAYERS = 10  # named in a message
_MAX_EXPERTS = 1 << 16  # the tensors of every expert are listed before files are read
MIN_GATE_LOWER_BOUND = -5.0  # the chunked delta rule is exact in float32 down to this log decay


@dataclass(frozen=True)
class KdaConfig:
    """`linear_attn_config`: the Kimi Delta Attention layers.

    Attributes:
      num_heads: heads H.
      head_dim: key and value width K = V of a head.
      short_conv_kernel_size: taps of the causal depthwise convolution.
      gate_lower_bound: log decay of a fully open forget gate, nats per token, in [-5, 0).
    """

    num_heads: int
    head_dim: int
    short_conv_kernel_size: int
    gate_lower_bound: float

    @property
    def width(self) -> int:
        """Channels of q, k, v, gate and output: H * K."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True)
class ModelConfig:
    """The text model of a Kimi K3 checkpoint (`text_config` of config.json).

    Attributes are named as on disk, except `kda_layers` and `mla_layers`: 0-based here, 1-based on
    disk; and `eos_token_id`: all ids that end a text, one or a list on disk. `latent_norm_eps` is
    not on disk: the published code uses 1e-6 for the two latent norms of MLA, independently of
    `rms_norm_eps`.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    activation_situ_beta: float
    activation_situ_linear_beta: float
    attn_res_block_size: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    moe_intermediate_size: int
    routed_expert_hidden_size: int
    routed_scaling_factor: float
    first_k_dense_replace: int
    kda: KdaConfig
    kda_layers: tuple[int, ...]
    mla_layers: tuple[int, ...]
    quantized_experts: bool
    bos_token_id: int | None = None
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int | None = None
    latent_norm_eps: float = LATENT_NORM_EPS

    @property
    def qk_head_dim(self) -> int:
        """Width of an MLA query or key head: content part and shared, unrotated part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_cache_width(self) -> int:
        """Values per token in the cache of one MLA layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def shared_intermediate_size(self) -> int:
        """Width of the shared experts, stored as one MLP."""
        return self.moe_intermediate_size * self.num_shared_experts

    def is_mla(self, layer: int) -> bool:
        """Whether 0-based `layer` is a full-attention (MLA) layer; otherwise it is KDA."""
        return layer in self.mla_layers

    def is_moe(self, layer: int) -> bool:
        """Whether 0-based `layer` has experts; otherwise a dense MLP."""
        return layer >= self.first_k_dense_replace

    @classmethod
    def from_dict(cls, data: dict[str, Any], where: str = "config.json") -> "ModelConfig":
        """Validates the parsed config.json.

        Raises:
          ConfigError: a field is missing, unsupported or contradicts another; the message names it.
        """
        top = Fields(data, where)
        text = _text_fields(top)
        kda, kda_layers, mla_layers = _attention_layers(text)
        _check_fixed(text)
        config = text.build(
            cls,
            num_experts=text.integer("num_experts", high=_MAX_EXPERTS),
            first_k_dense_replace=text.integer("first_k_dense_replace", low=0),
            kda=kda,
            kda_layers=kda_layers,
            mla_layers=mla_layers,
            quantized_experts=_quantization(top, text),
            bos_token_id=_special_id(top, text, "bos_token_id"),
            eos_token_id=_special_ids(top, text, "eos_token_id", several=True),
            pad_token_id=_special_id(top, text, "pad_token_id"),
        )
        _check_sizes(config, text)
        text.finish(GENERIC)
        if text is not top:
            top.finish(GENERIC)
        return config

    @classmethod
    def from_dir(cls, path: str | os.PathLike[str]) -> "ModelConfig":
        """Reads `path`/config.json. Raises ConfigError."""
        file = Path(path) / "config.json"
        return cls.from_dict(load_json(file), str(file))

    @classmethod
    def published(cls) -> "ModelConfig":
        """The configuration of the public Kimi K3, without its weights."""
        return cls.from_dict(load_json(PUBLISHED), str(PUBLISHED))


def _text_fields(top: Fields) -> Fields:
    """The text model's object: `text_config`, or the whole file for a text-only config."""
    if top.has("text_config"):
        top.fixed("model_type", "kimi_k3", required=True)
        text = top.child("text_config")
        top.fixed("tie_word_embeddings", False)
    else:
        text = top
    text.fixed("model_type", "kimi_linear", required=True)
    return text


def _attention_layers(text: Fields) -> tuple[KdaConfig, tuple[int, ...], tuple[int, ...]]:
    """`linear_attn_config`, with its two 1-based layer lists converted to 0-based ones."""
    linear = text.child("linear_attn_config")
    kda = linear.build(
        KdaConfig,
        short_conv_kernel_size=linear.integer("short_conv_kernel_size", low=2),
        gate_lower_bound=linear.number("gate_lower_bound"),
    )
    if not MIN_GATE_LOWER_BOUND <= kda.gate_lower_bound < 0:
        raise linear.error("gate_lower_bound", f"a number in [{MIN_GATE_LOWER_BOUND:g}, 0)")
    linear.fixed("use_full_rank_gate", True, required=True)
    layers = text.integer("num_hidden_layers")
    lists = {name: linear.integers(name) for name in ("kda_layers", "full_attn_layers")}
    for name, numbers in lists.items():
        if any(not 1 <= n <= layers for n in numbers):
            raise linear.error(name, f"1-based layer numbers from 1 to {layers}")
    kda_set, mla_set = (set(numbers) for numbers in lists.values())
    if both := sorted(kda_set & mla_set):
        raise linear.error("full_attn_layers", f"no layer that kda_layers lists too ({both})")
    missing = layers - len(kda_set) - len(mla_set)
    if missing:
        others = (n for n in range(1, layers + 1) if n not in kda_set and n not in mla_set)
        listed = str(list(itertools.islice(others, _LISTED_LAYERS)))
        if missing > _LISTED_LAYERS:
            listed += f" and {missing - _LISTED_LAYERS} more"
        raise linear.error("kda_layers", f"every layer here or in full_attn_layers (not {listed})")
    linear.finish(())
    zero_based = [tuple(sorted(n - 1 for n in numbers)) for numbers in lists.values()]
    return kda, zero_based[0], zero_based[1]


def _check_fixed(text: Fields) -> None:
    text.fixed("hidden_act", "situ", required=True)
    text.fixed("mla_use_nope", True, required=True)
    text.fixed("mla_use_output_gate", True, required=True)
    text.fixed("latent_moe_use_norm", True, required=True)
    text.fixed("moe_router_activation_func", "sigmoid", required=True)
    text.fixed("moe_renormalize", True, required=True)
    text.fixed("moe_layer_freq", 1)
    text.fixed("num_expert_group", 1)
    text.fixed("topk_group", 1)
    text.fixed("topk_method", "noaux_tc")
    text.fixed("num_nextn_predict_layers", 0)
    text.fixed("tie_word_embeddings", False)
    text.fixed("attention_bias", False)
    text.absent("rope_scaling", "sliding_window")
    # Without positions in attention (mla_use_nope) no angle is computed from these.
    text.positive("rope_theta", default=None)
    if text.take("rope_parameters", None) is not None:
        rope = text.child("rope_parameters")
        rope.fixed("rope_type", "default")
        rope.positive("rope_theta", default=None)


def _quantization(top: Fields, text: Fields) -> bool:
    """Whether experts are MXFP4, as text_config, the top level or both say."""
    holders = (text,) if text is top else (text, top)
    return any([_is_mxfp4(holder) for holder in holders])  # a list: check all of them


def _is_mxfp4(holder: Fields) -> bool:
    """Whether there is a quantization_config, which must be the MXFP4 that the codec decodes."""
    if holder.take("quantization_config", None) is None:
        return False
    quant = holder.child("quantization_config")
    quant.fixed("quant_method", "compressed-tensors", required=True)
    quant.fixed("quantization_status", "compressed", "frozen")
    quant.absent("kv_cache_scheme")
    for name in ("transform_config", "sparsity_config"):
        if quant.take(name, {}) != {}:
            raise quant.error(name, "no such field, or an empty one")
    groups = quant.child("config_groups")
    if len(groups.data) != 1:
        raise quant.error("config_groups", "exactly one group")
    group = groups.child(next(iter(groups.data)))
    group.absent("input_activations", "output_activations")
    group.fixed("format", _FORMAT)
    quant.fixed("format", _FORMAT, required=not group.has("format"))
    weights = group.child("weights")
    weights.fixed("num_bits", 4, required=True)
    weights.fixed("type", "float", required=True)
    weights.fixed("strategy", "group", required=True)
    weights.fixed("group_size", 32, required=True)
    weights.fixed("symmetric", True, required=True)
    weights.fixed("dynamic", False)
    weights.fixed("scale_dtype", *_SCALE_DTYPES)
    return True


def _special_id(top: Fields, text: Fields, name: str) -> int | None:
    ids = _special_ids(top, text, name, several=False)
    return ids[0] if ids else None


def _special_ids(top: Fields, text: Fields, name: str, several: bool) -> tuple[int, ...]:
    """The ids of a special token, at the top, in text_config, or the same in both."""
    outer, inner = (_ids(holder, name, several) for holder in (top, text))
    if outer and inner and set(outer) != set(inner):
        shown = outer[0] if len(outer) == 1 else list(outer)
        raise text.error(name, f"the same value as at the top of the file ({shown})")
    return outer or inner


def _ids(holder: Fields, name: str, several: bool) -> tuple[int, ...]:
    """An id or, if there may be `several`, a list of ids; empty if the field is absent."""
    value = holder.take(name, None)
    if several and isinstance(value, list):
        if not value or not all(type(v) is int and v >= 0 for v in value):
            raise holder.error(name, "an id or a list of ids")
        return tuple(dict.fromkeys(value))
    return () if value is None else (holder.integer(name, low=0),)


def _check_sizes(c: ModelConfig, text: Fields) -> None:
    if text.integer("num_key_value_heads") != c.num_attention_heads:
        raise text.error("num_key_value_heads", f"num_attention_heads ({c.num_attention_heads})")
    if c.num_experts_per_token > c.num_experts:
        raise text.error("num_experts_per_token", f"at most num_experts ({c.num_experts})")
    if c.first_k_dense_replace > c.num_hidden_layers:
        raise text.error("first_k_dense_replace", f"at most {c.num_hidden_layers} layers")
    # Unused here; other programs write one of these sizes.
    implied = {c.qk_head_dim, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim, c.kda.head_dim}
    implied.add(c.hidden_size // c.num_attention_heads)
    if text.integer("head_dim", default=None) not in (None, *implied):
        raise text.error("head_dim", f"one of the sizes in this file {sorted(implied)}")
    if c.quantized_experts:
        for name in ("routed_expert_hidden_size", "moe_intermediate_size"):
            if getattr(c, name) % 32:
                raise text.error(name, "a multiple of the MXFP4 group size 32")
    ids = [("bos_token_id", c.bos_token_id), ("pad_token_id", c.pad_token_id)]
    for name, value in [*ids, *(("eos_token_id", value) for value in c.eos_token_id)]:
        if value is not None and value >= c.vocab_size:
            raise ConfigError(
                f"{text.where}: {name}: expected an id below vocab_size {c.vocab_size}, "
                f"found {value}"
            )
