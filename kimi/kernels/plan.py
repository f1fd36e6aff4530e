"""The plan of a kernel: buffers, scratch arrays, semaphores, schedule, all from one table each.

Made from a layout, a chip and a few settings; checked when made. Contains no Pallas: a kernel asks
it for shapes and counts.
"""

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from kimi.kernels import phases, schedule
from kimi.kernels.budget import check_hbm
from kimi.kernels.buffers import BufferSpec, Space
from kimi.kernels.chip import LANES, MIB, ROW_BYTES, SUBLANES
from kimi.kernels.chip import round_up as up
from kimi.kernels.errors import PlanError
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.kernel_plan import KernelPlan
from kimi.kernels.layout import LayerKind, Layout
from kimi.kernels.matrix import BF16_TILE_ROWS
from kimi.kernels.records import KdaRecord, LatentCache, Rows
from kimi.kernels.routing import ListRow
from kimi.kernels.schedule import Round, Step, Transfer
from kimi.kernels.settings import LEAST_CACHE_POSITIONS, Settings

# Found by timing compiled kernels: deeper rings and more expert slots gain nothing, fewer lose.
_RING_BYTES = 16 * MIB
_EXPERT_SLOTS = 10
# Experts that the kernel awaits before the first one's slot is free again: two at a time, and the
# one that follows. With fewer slots and more experts it would hang.
_EXPERTS_AWAITED = 3
# Long tiles hide the latency of a softmax; a short context would be a tile that is mostly dead, and
# every sequence of a batch has one of its own.
_CACHE_POSITIONS, _CACHE_POSITIONS_BATCH = 2048, 1024
_MIN_RING_TILES = 4

F32, U32 = np.dtype(np.float32), np.dtype(np.uint32)
BF16, I32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.int32)


def _at_most_all_experts(slots: int, layout: Layout, rows: int) -> int:
    """`slots`, or one for every expert that a rank can have to run, if those are fewer."""
    return max(1, min(slots, rows * layout.config.num_experts_per_token, layout.local_experts))


def default_settings(
    layout: Layout,
    rows: int,
    context: int,
    sequences: int = 1,
    taps: tuple[int, ...] = (),
    rollback: bool = False,
) -> Settings:
    """The best settings known for `rows` rows; see `Settings`."""
    tiles = _RING_BYTES // (layout.tile_rows * ROW_BYTES)
    tiles = min(max(_MIN_RING_TILES, tiles), layout.tiles)
    slots = _at_most_all_experts(_EXPERT_SLOTS, layout, rows)
    most = _CACHE_POSITIONS if sequences == 1 else _CACHE_POSITIONS_BATCH
    half = 1 << (max(1, context // 2).bit_length() - 1)
    positions = min(most, max(LEAST_CACHE_POSITIONS, half))
    return Settings(
        rows, context, tiles, slots, cache_positions=positions, sequences=sequences,
        rollback=rollback, taps=taps,
    )  # fmt: skip


@dataclass(frozen=True)
class Plan(KernelPlan):
    """A checked plan.

    Raises:
      PlanError: a setting is not possible, memory does not suffice (the largest buffers are named),
        or the schedule is not sound.
    """

    PHASES = phases.PHASES

    layout: Layout
    settings: Settings

    def __post_init__(self) -> None:
        s = self.settings
        awaited = _at_most_all_experts(_EXPERTS_AWAITED, self.layout, s.rows)
        least_of = {"expert_slots": awaited, "cache_slots": 2}
        for name in ("context", "ring_tiles", "expert_slots", "cache_slots", "cache_positions"):
            least = least_of.get(name, 1)
            if getattr(s, name) < least:
                raise PlanError(
                    f"plan: {name}: expected at least {least}, found {getattr(s, name)}"
                )
        if s.cache_positions % LANES:
            raise PlanError(
                f"plan: cache_positions: expected a multiple of {LANES}, found {s.cache_positions}"
            )
        last = self.layout.config.num_hidden_layers
        if any(not 0 <= tap <= last for tap in s.taps) or len(set(s.taps)) < len(s.taps):
            raise PlanError(
                f"plan: taps: expected different ids from 0 to {last} (the layers), found "
                f"{list(s.taps)}"
            )
        self.check_memory_and_schedule()
        check_hbm(self.layout, self.chip, self.rows, s.context)

    @cached_property
    def rows(self) -> Rows:
        """The rows of a step."""
        return Rows(self.settings.rows, self.settings.sequences, self.settings.rollback)

    @property
    def row_tile(self) -> int:
        """Sublanes of the rows in messages: 1 or 8."""
        return self.rows.tile

    @cached_property
    def record(self) -> KdaRecord:
        """What a KDA layer leaves behind."""
        return KdaRecord.of(self.layout, self.rows)

    @cached_property
    def cache(self) -> LatentCache:
        """What an MLA layer leaves behind."""
        s = self.settings
        return LatentCache.of(self.layout, s.context, s.cache_positions, self.rows)

    @property
    def query_rows(self) -> int:
        """Rows of MLA queries: for every head `rows.tile`, padded to a tile of bfloat16."""
        heads = self.layout.mesh.local(self.layout.config.num_attention_heads)
        return up(heads * self.rows.tile, BF16_TILE_ROWS)

    @property
    def expert_list_slots(self) -> int:
        """Most distinct experts that one rank may have to run."""
        c = self.layout.config
        return up(min(c.num_experts, self.settings.rows * c.num_experts_per_token), BF16_TILE_ROWS)

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All copies."""
        return phases.transfers(self.layout, self.settings)

    @cached_property
    def buffers(self) -> tuple[BufferSpec, ...]:
        """All buffers."""
        messages = schedule.collective_buffers(
            self.transfers, self.layout.mesh, self.rows.tile, ALWAYS
        )
        return (*_weights(self), *_activations(self), *_attention(self), *_moe(self), *messages)

    @cached_property
    def program(self) -> tuple[Step, ...]:
        """The schedule of all layers, written out."""
        return phases.program(self.layout, self.settings)

    def layer_steps(self, kind: LayerKind) -> tuple[Step, ...]:
        """The schedule of one layer."""
        return phases.layer_steps(self.layout, kind, self.settings)

    def rounds(self, kind: LayerKind) -> tuple[Round, ...]:
        """The collectives of one layer."""
        return tuple(schedule.rounds(self.layer_steps(kind), self.transfers))


ALWAYS = (phases.PHASES[0], phases.PHASES[-1])


def _weights(p: Plan) -> tuple[BufferSpec, ...]:
    """What streams in from HBM."""
    layout, s = p.layout, p.settings
    c = layout.config
    record, cache = (p.record.total, LANES), p.cache
    ring = (s.ring_tiles, layout.tile_rows, LANES)
    experts = (s.expert_slots, layout.expert_block.rows, LANES)
    embedded = (s.rows, SUBLANES, layout.embedding_words)
    tiles = (s.cache_slots, cache.tile_blocks, cache.words, LANES)
    specs = [
        BufferSpec("ring", ring, U32, *ALWAYS, slots=s.ring_tiles),
        BufferSpec("vectors", (2, layout.vector_rows, LANES), F32, *ALWAYS, slots=2),
        BufferSpec("embedding_rows", embedded, U32, "begin", "embed"),
        BufferSpec("experts", experts, U32, "choose", "experts", slots=s.expert_slots),
    ]
    if c.kda_layers:
        specs += [
            BufferSpec("kda_record", record, F32, *ALWAYS),
            BufferSpec("kda_new_record", record, F32, *ALWAYS),
        ]
    if c.mla_layers:  # the open block takes new positions; rows may straddle two of them
        appended = (p.rows.sequences, cache.open_blocks, cache.words, LANES)
        specs += [
            BufferSpec("cache_tiles", tiles, U32, *ALWAYS, slots=s.cache_slots),
            BufferSpec("cache_open", appended, U32, *ALWAYS),
            BufferSpec("cache_new_open", appended, U32, *ALWAYS),
        ]
    return tuple(specs)


def _activations(p: Plan) -> tuple[BufferSpec, ...]:
    """The streams, and what a phase leaves for the next."""
    c, mesh = p.layout.config, p.layout.mesh
    hidden = up(c.hidden_size, LANES)
    entries = -(-c.num_hidden_layers // c.attn_res_block_size)
    width = max(mesh.local(c.shared_intermediate_size), mesh.local(c.intermediate_size))
    lhs = p.chip.matmul_rows
    return (
        BufferSpec("stream", (SUBLANES, hidden), F32, *ALWAYS),
        BufferSpec("residuals", (entries, SUBLANES, hidden), F32, *ALWAYS),
        BufferSpec("residual_norms", (entries, SUBLANES, LANES), F32, *ALWAYS),
        # The residuals' part of the next attention residual: weighted sum, and in three more
        # registers per row its maximum, its denominator and its square sum.
        BufferSpec("residual_sum", (SUBLANES, hidden + 3 * LANES), F32, *ALWAYS),
        BufferSpec("normed", (lhs, hidden), BF16, "attention_res", "head"),
        BufferSpec("partial", (lhs, hidden), F32, "kda_out", "dense_out"),
        BufferSpec("gate_up", (lhs, 2 * up(width, LANES)), F32, "shared_in", "dense_in",
                   "projections"),
        BufferSpec("hidden", (lhs, up(width, LANES)), BF16, "shared_in", "dense_out"),
        BufferSpec("shared", (SUBLANES, mesh.local(c.hidden_size)), F32, "shared_sum", "latent_up"),
    )  # fmt: skip


def _attention(p: Plan) -> tuple[BufferSpec, ...]:
    """KDA and MLA buffers take turns in the same storage; MLA rows are (head, row) pairs."""
    c, mesh = p.layout.config, p.layout.mesh
    lhs = p.chip.matmul_rows
    columns = {
        m.name: up(m.columns, LANES)
        for s in p.layout.attention_streams.values() for m in s.matrices
    }  # fmt: skip
    value = up(mesh.local(c.num_attention_heads) * c.v_head_dim, LANES)
    attended = max(up(p.record.channels, LANES), value)
    specs = []
    if c.kda_layers:
        specs += [
            BufferSpec("gates", (lhs, columns["kda_gates"]), F32, "kda_gates", "kda_delta"),
            BufferSpec("projected", (lhs, columns["kda_in"]), F32, "kda_in", "kda_delta",
                       "projections"),
            BufferSpec("decay", (lhs, columns["kda_decay"]), F32, "kda_decay", "kda_delta",
                       "channels"),
        ]  # fmt: skip
    if c.mla_layers:
        words = 2 * p.cache.words
        specs += [
            BufferSpec("query", (lhs, columns["mla_query"]), F32, "mla_query", "mla_query",
                       "projections"),
            BufferSpec("mla_gates", (lhs, columns["mla_gate"]), F32, "mla_gate", "mla_out",
                       "channels"),
            BufferSpec("keys", (p.query_rows, words), BF16, "mla_query", "mla_attend"),
            BufferSpec("mixed", (p.query_rows, c.kv_lora_rank), F32, "mla_attend", "mla_out"),
        ]  # fmt: skip
    last = "mla_out" if c.mla_layers else "kda_out"
    first = "kda_delta" if c.kda_layers else "mla_out"
    return (*specs, BufferSpec("attended", (lhs, attended), BF16, first, last))


def _moe(p: Plan) -> tuple[BufferSpec, ...]:
    """Routing, and the experts' two matmuls. MXFP4 has 8 rows per row, see `experts`."""
    block = p.layout.expert_block
    rows = p.settings.rows if block.format is ExpertFormat.MXFP4 else 1
    listed = (ListRow.SIZE, up(p.expert_list_slots, LANES))
    latent = up(block.gate_up.padded_inputs, LANES)
    hidden = up(block.down.padded_inputs, LANES)
    return (
        BufferSpec("choice", listed, F32, "choose", "experts"),
        BufferSpec("expert_list", listed, F32, "choose", "experts", space=Space.SMEM),
        BufferSpec("spread", (rows, SUBLANES, latent), F32, "choose", "experts"),
        BufferSpec("expert_hidden", (SUBLANES, hidden), F32, "experts", "experts"),
        BufferSpec("expert_sum", (rows, SUBLANES, up(block.latent, LANES)), F32, "experts",
                   "experts"),
    )  # fmt: skip
