"""What every phase of the draft kernel is given: its plan and all references."""

from dataclasses import dataclass

from jax import Array

from kimi.config import DraftConfig
from kimi.kernels.context import Core, Tiles, flat_row, read_vector
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.refs import Ref, Scalar

INPUTS = (
    "step", "frequencies", "taps", "dense", "vectors", "embedding", "markov_in", "markov_out",
    "cache",
)  # fmt: skip


@dataclass(frozen=True)
class DraftStep:
    """Numbers of one step, int32 in SMEM; see the package."""

    ref: Ref

    SIZE = 3

    @property
    def anchor(self) -> Array:
        """The newest token."""
        return self.ref[0]

    @property
    def length(self) -> Array:
        """Committed tokens in the context before this step: the position of the first new one."""
        return self.ref[1]

    @property
    def num_accepted(self) -> Array:
        """Rows of the taps that are committed now."""
        return self.ref[2]

    @property
    def position(self) -> Array:
        """Of the anchor."""
        return self.length + self.num_accepted


@dataclass(frozen=True)
class DraftKernel(Core):
    """The running draft kernel; `refs` has `INPUTS` and the results, see the package."""

    plan: DraftPlan

    @property
    def config(self) -> DraftConfig:
        """The drafter's."""
        return self.plan.layout.config

    @property
    def step(self) -> DraftStep:
        """Numbers of the step."""
        return DraftStep(self.refs["step"])

    def frame_vector(self, name: str) -> Array:
        """A small tensor outside the layers, [n / 128, 128] float32."""
        table, last = self.plan.layout.frame_vectors, self.config.num_hidden_layers
        return read_vector(self, table, last, name)[0]


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
        table = self.kernel.plan.layout.layer_vectors
        return read_vector(self.kernel, table, self.index, name)[0]

    def row(self, name: str, width: int) -> Array:
        """A small tensor as a row [1, width]."""
        return flat_row(self.vector(name), width)
