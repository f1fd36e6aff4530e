"""Which tensors a checkpoint must hold, derived from its config: name, shapes, dtypes.

Source: the published tensor index and config of Kimi K3, and of its DSpark drafter. Sizes come from
the config alone, so a model of any size is checked by the same table.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Self

from kimi.codecs.mxfp4 import GROUP
from kimi.config import DraftConfig, ModelConfig
from kimi.config.model import TARGET_PREFIX

Shape = tuple[int, ...]
Named = Iterator[tuple[str, "TensorSpec"]]

HEAD = "lm_head.weight"
# What precedes `layers.`: in the published index; in text-only exports; in exports of other
# programs, which leave out one part or exchange the two.
_STEMS = (
    f"{TARGET_PREFIX}model.", "model.", TARGET_PREFIX, f"model.{TARGET_PREFIX}", "",
)  # fmt: skip
EXPERT_WEIGHTS = ("w1", "w2", "w3")
FLOATS = ("BF16", "F32")  # some tools store everything in one of them

# Present in public files, of no use to a text model or to a drafter that has its target at hand.
_SKIPPED_TARGET = ("vision_tower.", "mm_projector.", "vision_model.", "multi_modal_projector.")
_SKIPPED_DRAFT = ("verifier_",)
DRAFT_OPTIONAL = ("embed_tokens.weight", "lm_head.weight")  # else the target's stand in


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor must be.

    Attributes:
      family: part of the model, for summaries.
      shapes: the forms in which it may be stored; the first is the one handed to readers.
      dtypes: safetensors names allowed.
      padded: a longer first axis is allowed; what is beyond `shapes[0]` is not used.
    """

    family: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...] = FLOATS
    padded: bool = False

    def allows(self, shape: Shape) -> bool:
        """Whether the tensor may be stored with this shape."""
        if shape in self.shapes:
            return True
        return self.padded and len(shape) == 1 and shape[0] > self.shapes[0][0]

    def expected(self) -> str:
        """The shapes allowed, in words."""
        text = " or ".join(str(list(shape)) for shape in self.shapes)
        return f"{text} or longer" if self.padded else text


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a checkpoint spells the names of the text model.

    Attributes:
      stem: what precedes `layers.` and the names outside the layers.
      head: the name of the head.
    """

    stem: str
    head: str

    @classmethod
    def of(cls, present: Container[str]) -> Self:
        """By the names that a checkpoint holds; the published spelling if they fit none."""
        ends = ("norm.weight", "embed_tokens.weight")
        stem = next((s for s in _STEMS if any(s + end in present for end in ends)), _STEMS[0])
        usual = TARGET_PREFIX + HEAD if stem.startswith(TARGET_PREFIX) else HEAD
        heads = (usual, HEAD, TARGET_PREFIX + HEAD)
        return cls(stem, next((head for head in heads if head in present), usual))

    def stored(self, name: str) -> str:
        """The stored form of a name in the published spelling, or without `language_model.`."""
        plain = name.removeprefix(TARGET_PREFIX)
        return self.head if plain == HEAD else self.stem + plain.removeprefix("model.")


def is_skipped_target(name: str) -> bool:
    """Whether this is a tensor of the vision part."""
    return name.removeprefix(TARGET_PREFIX).removeprefix("model.").startswith(_SKIPPED_TARGET)


def is_skipped_draft(name: str) -> bool:
    """Whether this is a copy of a target's tensor that training leaves in a drafter."""
    return name.startswith(_SKIPPED_DRAFT)


def is_skipped(name: str) -> bool:
    """Whether neither a target nor a drafter uses this tensor."""
    return is_skipped_target(name) or is_skipped_draft(name)


def target_tensors(config: ModelConfig, present: Container[str]) -> dict[str, TensorSpec]:
    """All tensors of the text model.

    Args:
      config: of the checkpoint.
      present: names that the checkpoint holds. They tell whether an expert is packed or dense: the
        list of exceptions in `quantization_config` is incomplete in the published config.
    """
    spelling = Spelling.of(present)
    tensors = {spelling.stored(name): spec for name, spec in _outside_layers(config)}
    for layer in range(config.num_hidden_layers):
        stem = f"{spelling.stem}layers.{layer}."
        for name, spec in _layer(config, layer):
            tensors[stem + name] = spec
        if config.is_moe(layer):
            tensors.update(_experts(config, f"{stem}block_sparse_moe.experts.", present))
    return tensors


def _one(family: str, *shape: int) -> TensorSpec:
    return TensorSpec(family, (shape,))


def _outside_layers(c: ModelConfig) -> Named:
    yield "model.embed_tokens.weight", _one("embedding", c.vocab_size, c.hidden_size)
    yield HEAD, _one("head", c.vocab_size, c.hidden_size)
    yield "model.norm.weight", _one("norms", c.hidden_size)
    yield from _attention_residual(c, "model.output_attn_res")


def _attention_residual(c: ModelConfig, name: str) -> Named:
    yield f"{name}_norm.weight", _one("attention residuals", c.hidden_size)
    yield f"{name}_proj.weight", _one("attention residuals", 1, c.hidden_size)


def _layer(c: ModelConfig, layer: int) -> Named:
    for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
        yield name, _one("norms", c.hidden_size)
    yield from _attention_residual(c, "self_attention_res")
    yield from _attention_residual(c, "mlp_res")
    for name, spec in _mla(c) if c.is_mla(layer) else _kda(c):
        yield f"self_attn.{name}", spec
    if c.is_moe(layer):
        for name, spec in _moe(c):
            yield f"block_sparse_moe.{name}", spec
    else:
        yield from _mlp("dense MLP", "mlp", c.hidden_size, c.intermediate_size)


def _kda(c: ModelConfig) -> Named:
    family, hidden, width = "KDA attention", c.hidden_size, c.kda.width
    heads, head, size = c.kda.num_heads, c.kda.head_dim, c.kda.short_conv_kernel_size
    for stream in "qkv":
        yield f"{stream}_proj.weight", _one(family, width, hidden)
        yield f"{stream}_conv1d.weight", TensorSpec(family, ((width, 1, size), (width, size)))
    yield "g_proj.weight", _one(family, width, hidden)
    yield "o_proj.weight", _one(family, hidden, width)
    yield "f_a_proj.weight", _one(family, head, hidden)
    yield "f_b_proj.weight", _one(family, width, head)
    yield "b_proj.weight", _one(family, heads, hidden)
    # K3 pads 96 heads to 128; Kimi Linear stores four axes.
    yield "A_log", TensorSpec(family, ((heads,), (1, 1, heads, 1)), padded=True)
    yield "dt_bias", _one(family, width)
    yield "o_norm.weight", _one(family, head)


def _mla(c: ModelConfig) -> Named:
    family, hidden, heads = "MLA attention", c.hidden_size, c.num_attention_heads
    key_value = heads * (c.qk_nope_head_dim + c.v_head_dim)
    yield "q_a_proj.weight", _one(family, c.q_lora_rank, hidden)
    yield "q_a_layernorm.weight", _one(family, c.q_lora_rank)
    yield "q_b_proj.weight", _one(family, heads * c.qk_head_dim, c.q_lora_rank)
    yield "kv_a_proj_with_mqa.weight", _one(family, c.latent_cache_width, hidden)
    yield "kv_a_layernorm.weight", _one(family, c.kv_lora_rank)
    yield "kv_b_proj.weight", _one(family, key_value, c.kv_lora_rank)
    yield "g_proj.weight", _one(family, heads * c.v_head_dim, hidden)
    yield "o_proj.weight", _one(family, hidden, heads * c.v_head_dim)


def _mlp(family: str, stem: str, hidden: int, width: int) -> Named:
    yield f"{stem}.gate_proj.weight", _one(family, width, hidden)
    yield f"{stem}.up_proj.weight", _one(family, width, hidden)
    yield f"{stem}.down_proj.weight", _one(family, hidden, width)


def _moe(c: ModelConfig) -> Named:
    hidden, latent = c.hidden_size, c.routed_expert_hidden_size
    yield "gate.weight", _one("router", c.num_experts, hidden)
    yield "gate.e_score_correction_bias", _one("router", c.num_experts)
    yield "routed_expert_down_proj.weight", _one("latent projections", latent, hidden)
    yield "routed_expert_norm.weight", _one("latent projections", latent)
    yield "routed_expert_up_proj.weight", _one("latent projections", hidden, latent)
    yield from _mlp("shared experts", "shared_experts", hidden, c.shared_intermediate_size)


def _experts(c: ModelConfig, stem: str, present: Container[str]) -> Named:
    for which in EXPERT_WEIGHTS:
        rows, inputs = c.moe_intermediate_size, c.routed_expert_hidden_size
        if which == "w2":
            rows, inputs = inputs, rows
        dense = TensorSpec("experts", ((rows, inputs),))
        codes = TensorSpec("experts", ((rows, inputs // 2),), ("U8",))
        scale = TensorSpec("experts", ((rows, inputs // GROUP),), ("U8", "F8_E8M0"))
        for e in range(c.num_experts):
            name = f"{stem}{e}.{which}"
            packed = f"{name}.weight_packed" in present
            if packed or (c.quantized_experts and f"{name}.weight" not in present):
                yield f"{name}.weight_packed", codes
                yield f"{name}.weight_scale", scale
            else:
                yield f"{name}.weight", dense


def draft_tensors(config: DraftConfig, present: Container[str]) -> dict[str, TensorSpec]:
    """All tensors of a drafter; its embedding and head only if `present` holds them."""
    tensors = dict(_draft(config))
    return {n: spec for n, spec in tensors.items() if n in present or n not in DRAFT_OPTIONAL}


def _draft(c: DraftConfig) -> Named:
    hidden, vocab, rank = c.hidden_size, c.vocab_size, c.markov_rank
    yield "embed_tokens.weight", _one("embedding", vocab, hidden)
    yield "lm_head.weight", _one("head", vocab, hidden)
    yield "fc.weight", _one("taps", hidden, c.tap_width)
    yield "hidden_norm.weight", _one("norms", hidden)
    yield "norm.weight", _one("norms", hidden)
    yield "markov_head.markov_w1.weight", _one("Markov head", vocab, rank)
    yield "markov_head.markov_w2.weight", _one("Markov head", vocab, rank)
    yield "confidence_head.proj.weight", _one("confidence head", 1, hidden + rank)
    yield "confidence_head.proj.bias", _one("confidence head", 1)
    query, key = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    for layer in range(c.num_hidden_layers):
        stem = f"layers.{layer}."
        yield f"{stem}input_layernorm.weight", _one("norms", hidden)
        yield f"{stem}post_attention_layernorm.weight", _one("norms", hidden)
        yield f"{stem}self_attn.q_proj.weight", _one("attention", query, hidden)
        yield f"{stem}self_attn.k_proj.weight", _one("attention", key, hidden)
        yield f"{stem}self_attn.v_proj.weight", _one("attention", key, hidden)
        yield f"{stem}self_attn.o_proj.weight", _one("attention", hidden, query)
        yield f"{stem}self_attn.q_norm.weight", _one("attention", c.head_dim)
        yield f"{stem}self_attn.k_norm.weight", _one("attention", c.head_dim)
        yield from _mlp("MLP", f"{stem}mlp", hidden, c.intermediate_size)
