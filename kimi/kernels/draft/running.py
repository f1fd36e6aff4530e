"""What every phase of the draft kernel is given: its plan and all references."""

from dataclasses import dataclass

import jax
from jax import Array

from kimi.config import DraftConfig
from kimi.kernels.chip import SUBLANES
from kimi.kernels.context import Tiles, flat_row
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.mesh import Mesh
from kimi.kernels.refs import Ref, Scalar, Semaphores, Workspace
from kimi.kernels.schedule import Transfer
from kimi.kernels.vectors import Vector, offsets

INPUTS = (
    "step", "frequencies", "taps", "dense", "vectors", "embedding", "markov_in", "markov_out",
    "context",
)  # fmt: skip
OUTPUTS = ("context", "tokens", "confidence")


@dataclass(frozen=True)
class DraftStep:
    """Numbers of one step, int32 in SMEM; see the package."""

    ref: Ref

    SIZE = 3

    @property
    def anchor(self) -> Array:
        """The newest token."""
        found: Array = self.ref[0]
        return found

    @property
    def length(self) -> Array:
        """Committed tokens in the context before this step: the position of the first new one."""
        found: Array = self.ref[1]
        return found

    @property
    def kept(self) -> Array:
        """Rows of the taps that are committed now."""
        found: Array = self.ref[2]
        return found

    @property
    def position(self) -> Array:
        """Of the anchor."""
        return self.length + self.kept


@dataclass(frozen=True)
class DraftKernel:
    """The running kernel, a `context.Core`.

    Attributes:
      plan: buffers and schedule.
      inputs: in HBM, but for the numbers and the frequencies; by the names of `INPUTS`.
      context: in HBM, updated in place.
      tokens, confidence: results in VMEM.
      ws: buffers.
      sems: semaphores.
      rank: of this core.
    """

    plan: DraftPlan
    inputs: dict[str, Ref]
    context: Ref
    tokens: Ref
    confidence: Ref
    ws: Workspace
    sems: Semaphores
    rank: Scalar

    @property
    def config(self) -> DraftConfig:
        """Of the drafter."""
        return self.plan.layout.config

    @property
    def step(self) -> DraftStep:
        """Numbers of the step."""
        return DraftStep(self.inputs["step"])

    @property
    def mesh(self) -> Mesh:
        """The ranks."""
        return self.plan.layout.mesh

    @property
    def row_tile(self) -> int:
        """Sublanes of the rows in messages."""
        return SUBLANES

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """All copies."""
        return self.plan.transfers

    @property
    def dense(self) -> Ref:
        """Dense weights in HBM."""
        return self.inputs["dense"]

    @property
    def tiles(self) -> int:
        """How many tiles there are."""
        return self.plan.layout.tiles

    @property
    def ring_tiles(self) -> int:
        """Slots of the ring."""
        return self.plan.settings.ring_tiles

    def frame_vector(self, name: str) -> Array:
        """A small tensor outside the layers, [n / 128, 128] float32."""
        return _vector(self, self.plan.layout.frame_vectors, self.config.num_hidden_layers, name)


@dataclass(frozen=True)
class DraftLayer:
    """A layer.

    Attributes:
      kernel: the running kernel.
      index: 0-based, traced.
      tiles: its weights.
    """

    kernel: DraftKernel
    index: Scalar
    tiles: Tiles

    def vector(self, name: str) -> Array:
        """A small tensor [n / 128, 128] float32."""
        return _vector(self.kernel, self.kernel.plan.layout.layer_vectors, self.index, name)

    def row(self, name: str, width: int) -> Array:
        """A small tensor as a row [1, width]."""
        return flat_row(self.vector(name), width)


def _vector(k: DraftKernel, vectors: tuple[Vector, ...], entry: Scalar, name: str) -> Array:
    first = offsets(vectors)[name]
    count = next(v for v in vectors if v.name == name).device_rows
    found: jax.Array = k.ws["vectors"][entry, first : first + count, :]
    return found
