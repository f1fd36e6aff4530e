"""The small tensors of a layer as one array: norms, weights of attention residuals, convolutions,
biases.

f32 [rows, 128], copied in one go while the layer before is computed. A vector [n] is n/128 rows:
row i holds elements 128 i to 128 i + 127, zeros behind the last. All of them are held whole by
every rank, except those that belong to heads. Stored bfloat16 values are widened, which is exact.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kimi.config import ModelConfig
from kimi.kernels.chip import LANES, SUBLANES, round_up
from kimi.kernels.mesh import Mesh, Span

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Vector:
    """One small tensor in the array of its layer.

    Attributes:
      name: how the kernel calls it.
      tensors: names within the layer; several are joined along the channels.
      shape: of each tensor as stored.
      rows: the span of the first axis that a rank holds, or None for all.
      kernel_size: the tensors are [channels, 1, kernel_size] and are stored tap by tap, oldest
        first, each tap with the channels of all tensors.
      repeat: every value is stored this many times (a value per head, spread over its channels).
    """

    name: str
    tensors: tuple[str, ...]
    shape: tuple[int, ...]
    rows: Span | None = None
    kernel_size: int = 1
    repeat: int = 1

    @property
    def channels(self) -> int:
        """Values a rank holds of one tensor (of one tap)."""
        if self.rows is not None:
            return self.rows[1] - self.rows[0]
        return math.prod(self.shape) // self.kernel_size

    @property
    def width(self) -> int:
        """Values in one tap."""
        return self.channels * len(self.tensors) * self.repeat

    @property
    def device_rows(self) -> int:
        """Rows of 128 in the array."""
        return self.kernel_size * round_up(self.width, LANES) // LANES


def layer_vectors(c: ModelConfig, mesh: Mesh, rank: int, layer: int) -> tuple[Vector, ...]:
    """The vectors of a layer, in the order of the array.

    Those of the attention come last: all others then lie at the same rows in both kinds.
    """
    hidden = (c.hidden_size,)
    return (
        Vector("attention_norm", ("input_layernorm.weight",), hidden),
        *_attn_res("attention_res", "self_attention_res", c),
        Vector("mlp_norm", ("post_attention_layernorm.weight",), hidden),
        *_attn_res("mlp_res", "mlp_res", c),
        *(_moe(c) if c.is_moe(layer) else ()),
        *(_mla(c) if c.is_mla(layer) else _kda(c, mesh, rank)),
    )


def output_vectors(c: ModelConfig) -> tuple[Vector, ...]:
    """The vectors behind the last layer, in an array like a layer's.

    They lie where a layer has those of its attention residual, as if one more layer followed.
    """
    return (
        Vector("attention_norm", ("model.norm.weight",), (c.hidden_size,)),
        *_attn_res("attention_res", "model.output_attn_res", c),
    )


def _attn_res(name: str, stem: str, c: ModelConfig) -> Iterator[Vector]:
    yield Vector(f"{name}_norm", (f"{stem}_norm.weight",), (c.hidden_size,))
    yield Vector(f"{name}_proj", (f"{stem}_proj.weight",), (1, c.hidden_size))


def _kda(c: ModelConfig, mesh: Mesh, rank: int) -> Iterator[Vector]:
    heads, width = mesh.span(c.kda.num_heads, rank), c.kda.head_dim
    own, kernel_size = (heads[0] * width, heads[1] * width), c.kda.short_conv_kernel_size
    convs = tuple(f"self_attn.{stream}_conv1d.weight" for stream in "qkv")
    yield Vector("conv", convs, (c.kda.width, 1, kernel_size), own, kernel_size)
    yield Vector("decay_rate", ("self_attn.A_log",), (c.kda.num_heads,), heads, repeat=width)
    yield Vector("decay_bias", ("self_attn.dt_bias",), (c.kda.width,), own)
    yield Vector("kda_norm", ("self_attn.o_norm.weight",), (width,))


def _mla(c: ModelConfig) -> Iterator[Vector]:
    yield Vector("query_norm", ("self_attn.q_a_layernorm.weight",), (c.q_lora_rank,))
    yield Vector("latent_norm", ("self_attn.kv_a_layernorm.weight",), (c.kv_lora_rank,))


def _moe(c: ModelConfig) -> Iterator[Vector]:
    stem = "block_sparse_moe."
    bias = f"{stem}gate.e_score_correction_bias"
    yield Vector("route_bias", (bias,), (c.num_experts,))
    norm = f"{stem}routed_expert_norm.weight"
    yield Vector("expert_norm", (norm,), (c.routed_expert_hidden_size,))


def offsets(vectors: Sequence[Vector]) -> dict[str, int]:
    """The first row of each vector."""
    rows: dict[str, int] = {}
    row = 0
    for vector in vectors:
        rows[vector.name] = row
        row += vector.device_rows
    return rows


def total_rows(vectors: tuple[Vector, ...]) -> int:
    """Rows that the vectors need, in whole register tiles."""
    return round_up(sum(v.device_rows for v in vectors), SUBLANES)


def pack_vectors(vectors: tuple[Vector, ...], rows: int, read: Callable[[str], F32]) -> F32:
    """The array f32 [rows, 128]; `read` gives a tensor by its name."""
    out = np.zeros((rows, LANES), np.float32)
    for vector, row in zip(vectors, offsets(vectors).values(), strict=True):
        parts = []
        for name in vector.tensors:
            value = read(name).reshape(-1, vector.kernel_size)
            value = value if vector.rows is None else value[slice(*vector.rows)]
            parts.append(np.repeat(value, vector.repeat, 0))
        target = out[row : row + vector.device_rows].reshape(vector.kernel_size, -1)
        target[:, : vector.width] = np.concatenate(parts).T
    return out
