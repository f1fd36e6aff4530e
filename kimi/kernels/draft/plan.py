"""The plan of the draft kernel: buffers, semaphores, schedule, from one table each; checked."""

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from kimi.kernels import schedule
from kimi.kernels.buffers import BufferSpec
from kimi.kernels.chip import LANES, MIB, ROW_BYTES, SUBLANES
from kimi.kernels.chip import round_up as up
from kimi.kernels.draft import phases
from kimi.kernels.draft.cache import DraftCache
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.errors import PlanError
from kimi.kernels.kernel_plan import KernelPlan
from kimi.kernels.schedule import Step, Transfer

# The chain of collectives is longer than the stream of weights: what the ring holds is read for
# free.
_RING_BYTES = 32 * MIB
_MIN_RING_TILES = 4

F32, U32 = np.dtype(np.float32), np.dtype(np.uint32)
BF16 = np.dtype(ml_dtypes.bfloat16)
ALWAYS = (phases.PHASES[0], phases.PHASES[-1])


@dataclass(frozen=True)
class DraftSettings:
    """Sizes that are free to choose.

    Attributes:
      ring_tiles: tiles of the dense ring.
      context: committed tokens at most; has no meaning for a drafter with a window.
    """

    ring_tiles: int
    context: int = 0


def default_settings(layout: DraftLayout, context: int = 0) -> DraftSettings:
    """The best settings known; see `DraftSettings`."""
    tiles = _RING_BYTES // (layout.tile_rows * ROW_BYTES)
    return DraftSettings(min(max(_MIN_RING_TILES, tiles), layout.tiles), context)


@dataclass(frozen=True)
class DraftPlan(KernelPlan):
    """A checked plan.

    Raises:
      PlanError: a setting or a size is not possible, VMEM does not suffice (the largest buffers are
        named), or the schedule is not sound.
    """

    PHASES = phases.PHASES

    layout: DraftLayout
    settings: DraftSettings

    def __post_init__(self) -> None:
        c = self.layout.config
        if not 1 <= self.settings.ring_tiles <= self.layout.tiles:
            raise PlanError(
                f"draft plan: ring_tiles: expected 1 to {self.layout.tiles} tiles, found "
                f"{self.settings.ring_tiles}"
            )
        if c.block_size > SUBLANES:
            raise PlanError(
                f"draft plan: block_size: expected at most {SUBLANES}, found {c.block_size}"
            )
        for name, multiple in (("hidden_size", LANES), ("vocab_size", SUBLANES)):
            if getattr(c, name) % multiple:
                raise PlanError(
                    f"draft plan: {name}: expected a multiple of {multiple}, found "
                    f"{getattr(c, name)}"
                )
        self.check_memory_and_schedule()

    @property
    def row_tile(self) -> int:
        """Sublanes of the rows in messages."""
        return SUBLANES

    @cached_property
    def cache(self) -> DraftCache:
        """What committed tokens leave behind."""
        return DraftCache.of(self.layout, self.settings.context)

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All copies."""
        return phases.transfers(self.layout, self.settings.ring_tiles)

    @cached_property
    def buffers(self) -> tuple[BufferSpec, ...]:
        """All buffers."""
        messages = schedule.collective_buffers(self.transfers, self.layout.mesh, SUBLANES, ALWAYS)
        return (*_loaded(self), *_activations(self), *messages)

    @cached_property
    def program(self) -> tuple[Step, ...]:
        """The schedule of all layers, written out."""
        return phases.program(self.layout, self.settings.ring_tiles)


def _loaded(p: DraftPlan) -> tuple[BufferSpec, ...]:
    """What comes from HBM."""
    layout, count = p.layout, p.settings.ring_tiles
    c, shapes = layout.config, layout.shapes
    embedded = (phases.DISTINCT_TOKENS, SUBLANES, layout.embedding_words)
    taps = (len(c.aux_hidden_state_layer_ids), SUBLANES, c.hidden_size)
    return (
        BufferSpec("ring", (count, layout.tile_rows, LANES), U32, *ALWAYS, slots=count),
        BufferSpec("vectors", shapes["vectors"], F32, *ALWAYS),
        BufferSpec("embedding_rows", embedded, U32, "begin", "embed"),
        BufferSpec("taps", taps, F32, "begin", "fuse"),
        BufferSpec("markov_in", shapes["markov_in"], U32, *ALWAYS),
        BufferSpec("markov_out", shapes["markov_out"], U32, *ALWAYS),
        BufferSpec("cache", p.cache.shape, U32, *ALWAYS, slots=c.num_hidden_layers),
    )


def _activations(p: DraftPlan) -> tuple[BufferSpec, ...]:
    """The stream, and what a phase leaves for the next."""
    c, layout, lhs = p.layout.config, p.layout, p.chip.matmul_rows
    columns = {m.name: up(m.columns, LANES) for m in layout.layer_stream.matrices}
    inner, vocabulary = layout.mesh.local(c.intermediate_size), layout.head_matrix(0).columns
    return (
        BufferSpec("stream", (SUBLANES, c.hidden_size), F32, *ALWAYS),
        # Committed rows, normed; below the block's rows they are multiplied in the same products.
        BufferSpec("committed_rows", (SUBLANES, c.hidden_size), F32, "fused", "layer_join"),
        BufferSpec("tap_rows", (lhs, c.tap_width), BF16, "fuse", "fuse"),
        BufferSpec("angles", (2, lhs, LANES), F32, "embedded", "layer_join"),
        BufferSpec("normed", (lhs, c.hidden_size), BF16, "attention_norm", "head"),
        BufferSpec("projected", (lhs, columns["project"]), F32, "project", "attend"),
        BufferSpec("attended", (lhs, up(layout.heads * c.head_dim, LANES)), BF16, "attend",
                   "attention_out"),
        BufferSpec("partial", (lhs, c.hidden_size), F32, "attention_out", "mlp_out"),
        BufferSpec("gate_up", (lhs, columns["mlp_in"]), F32, "mlp_in", "mlp_in"),
        BufferSpec("hidden", (lhs, up(inner, LANES)), BF16, "mlp_in", "mlp_out"),
        BufferSpec("base", (SUBLANES, up(vocabulary, LANES)), F32, "head", "choose"),
        BufferSpec("confidence", (SUBLANES, LANES), F32, "output_norm", "choose"),
    )  # fmt: skip
