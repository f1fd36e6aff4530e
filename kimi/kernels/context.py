"""What every phase of the kernel is given: the plan, all references, and where it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kimi.config import ModelConfig
from kimi.kernels.chip import LANES, SUBLANES, round_up
from kimi.kernels.kernel_plan import KernelPlan
from kimi.kernels.layer_table import Column
from kimi.kernels.layout import LayerKind
from kimi.kernels.mesh import Mesh
from kimi.kernels.ops.lanes import side_by_side
from kimi.kernels.plan import Plan
from kimi.kernels.refs import Ref, Scalar, Semaphores, StepInput, Workspace
from kimi.kernels.stream import Stream
from kimi.kernels.vectors import Vector, offsets, output_vectors


@dataclass(frozen=True)
class Core:
    """A running kernel, whatever it computes: what collectives and the ring of weights need.

    Attributes:
      plan: buffers and schedule.
      refs: operands and results, by name.
      ws: buffers.
      sems: semaphores.
      rank: of this core.
    """

    plan: KernelPlan
    refs: Mapping[str, Ref]
    ws: Workspace
    sems: Semaphores
    rank: Scalar

    @property
    def mesh(self) -> Mesh:
        """The ranks."""
        return self.plan.layout.mesh

    @property
    def row_tile(self) -> int:
        """Sublanes of the rows in messages: 1 or 8."""
        return self.plan.row_tile


@dataclass(frozen=True)
class Kernel(Core):
    """The running decode kernel; `refs` has `refs.INPUTS` and `refs.OUTPUTS`."""

    plan: Plan

    @property
    def config(self) -> ModelConfig:
        """The model's."""
        return self.plan.layout.config

    @property
    def betas(self) -> tuple[float, float]:
        """SiTU's beta and linear beta."""
        return self.config.activation_situ_beta, self.config.activation_situ_linear_beta

    @property
    def step(self) -> StepInput:
        """Tokens and lengths."""
        return StepInput(self.refs["step"])


@dataclass(frozen=True)
class Tiles:
    """Where the dense weights of a half of a layer, or of the head, lie.

    Attributes:
      stream: blocks.
      tile: number of its first tile.
      slot: slot of the ring that holds it.
      keeps_last: the last tile is not given up, as the next stream begins in it.
    """

    stream: Stream
    tile: Scalar
    slot: Scalar
    keeps_last: bool


@dataclass(frozen=True)
class Layer:
    """A layer, or what follows the last one.

    Attributes:
      kernel: the running kernel.
      index: 0-based, traced.
      kind: what the program of this layer is for; None behind the last layer.
    """

    kernel: Kernel
    index: Scalar
    kind: LayerKind | None

    def __getitem__(self, column: Column) -> Array:
        return self.kernel.refs["table"][self.index * len(Column) + column]

    @property
    def attention(self) -> Tiles:
        """Tiles of the attention."""
        assert self.kind is not None
        layout = self.kernel.plan.layout
        stream = layout.attention_streams[self.kind.mla]
        held = layout.feed_forward_streams[self.kind.moe].start_row > 0
        return Tiles(stream, self[Column.ATTENTION_TILE], self[Column.ATTENTION_SLOT], held)

    @property
    def feed_forward(self) -> Tiles:
        """Tiles of the feed-forward part."""
        assert self.kind is not None
        stream = self.kernel.plan.layout.feed_forward_streams[self.kind.moe]
        return Tiles(stream, self[Column.FEED_TILE], self[Column.FEED_SLOT], False)

    @cached_property
    def _vectors(self) -> tuple[Vector, ...]:
        layout = self.kernel.plan.layout
        if self.kind is None:
            return output_vectors(layout.config)
        return layout.layer_vectors(layout.layer_of_kind[self.kind], 0)

    def vector(self, name: str) -> Array:
        """A small tensor [n] as the layout has it, [n / 128, 128] float32."""
        return self.conv_weights(name)[0]

    def conv_weights(self, name: str) -> list[Array]:
        """Weights of a convolution tap by tap, [channels / 128, 128] float32 each."""
        return read_vector(self.kernel, self._vectors, self.index & 1, name)

    def row(self, name: str) -> Array:
        """A small tensor [n] as a row [1, n] float32."""
        width = next(v.width for v in self._vectors if v.name == name)
        return flat_row(self.vector(name), width)


def read_vector(k: Core, table: Sequence[Vector], entry: Scalar, name: str) -> list[Array]:
    """A small tensor, one of `table`, tap by tap; `entry` is the first index of its buffer."""
    first = offsets(table)[name]
    vector = next(v for v in table if v.name == name)
    count = vector.device_rows // vector.kernel_size
    starts = range(first, first + vector.device_rows, count)
    return [k.ws["vectors"][entry, start : start + count, :] for start in starts]


def code_by_name(*code: Callable[..., None]) -> dict[str, Callable[..., None]]:
    """Functions of phases, by the names under which a schedule orders them."""
    return {run.__name__: run for run in code}


def run_phases(code: Mapping[str, Callable[..., None]], names: Sequence[str], *at: Any) -> None:
    """Runs phases, each in a scope of its name: the compiled schedule is timed phase by phase."""
    for name in names:
        with jax.named_scope(name):
            code[name](*at)


def flat_row(rows: Array, width: int) -> Array:
    """A small tensor [n / 128, 128] as a row [1, width]."""
    return side_by_side([rows[i : i + 1] for i in range(rows.shape[0])])[:, :width]


def rows_to_tile(x: Array) -> Array:
    """[1 or 8, N] -> [8, N]; a single row on every sublane."""
    return x if x.shape[0] == SUBLANES else jnp.broadcast_to(x, (SUBLANES, x.shape[1]))


def stack_rows(rows: list[Array], count: int) -> Array:
    """Rows [1, N] below each other, zero rows behind up to `count`."""
    return side_by_side([*rows, *[jnp.zeros_like(rows[0])] * (count - len(rows))], 0)


def left_operand(x: Array, width: int = 0) -> Array:
    """[R <= 16, N] float32 -> [16, width] bfloat16, zeros below and behind.

    Args:
      width: N up to whole lanes by default.
    """
    rows, columns = x.shape
    width = width or round_up(columns, LANES)
    if columns < width:
        x = jnp.concatenate([x, jnp.zeros((rows, width - columns), x.dtype)], 1)
    if rows < 2 * SUBLANES:
        x = jnp.concatenate([x, jnp.zeros((2 * SUBLANES - rows, width), x.dtype)], 0)
    return x.astype(jnp.bfloat16)


def unit_rms(x: Array, eps: float) -> Array:
    """Rows [R, N] float32 over their root mean square."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)


def read_tiles(ref: Ref, first: int, width: int) -> Array:
    """Register tiles below each other, rows `first` on of [rows, 128] -> [8, width]."""
    count = -(-width // LANES)
    tiles = [ref[first + i * SUBLANES : first + (i + 1) * SUBLANES, :] for i in range(count)]
    return side_by_side(tiles)[:, :width]


def write_tiles(ref: Ref, first: int, value: Array) -> None:
    """The inverse of `read_tiles`; lanes behind the last column keep what they have."""
    for i, lane in enumerate(range(0, value.shape[1], LANES)):
        part = value[:, lane : lane + LANES]
        row = first + i * SUBLANES
        ref[row : row + SUBLANES, : part.shape[1]] = part
