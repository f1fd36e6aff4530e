"""The plan of a kernel: buffers, scratch arrays, semaphores, schedule, all from one table each.

Made from a layout, a chip and a few settings; checked when made. Contains no Pallas: a kernel asks
it for shapes and counts.
"""

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from kimi.kernels import buffers, phases, schedule
from kimi.kernels.budget import cache_position_bytes, check_hbm, kda_record_rows
from kimi.kernels.buffers import BufferSpec, Space, Storage
from kimi.kernels.chip import LANES, MIB, ROW_BYTES, SUBLANES, TPU_V7, WORD_BYTES, ChipSpec
from kimi.kernels.chip import round_up as up
from kimi.kernels.errors import PlanError
from kimi.kernels.layout import LayerKind, Layout
from kimi.kernels.matrix import BF16_TILE_ROWS
from kimi.kernels.schedule import Round, Step, Transfer

MAX_ROWS = 8  # rows of the model fill the sublanes of a register
# Found by timing compiled skeletons: deeper rings gain nothing, fewer expert slots lose much.
_RING_BYTES = 16 * MIB
_EXPERT_SLOTS_ONE_ROW, _EXPERT_SLOTS = 10, 16
_CACHE_SLOTS = 4
_CACHE_POSITIONS = 512
_MIN_RING_TILES = 4

F32, U32 = np.dtype(np.float32), np.dtype(np.uint32)
BF16, I32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.int32)


@dataclass(frozen=True)
class Settings:
    """Sizes that are free to choose.

    Attributes:
      rows: rows of the model in a step: 1, or the rows of a block that is verified.
      context: cache slots of the MLA layers.
      ring_tiles: tiles of the dense ring.
      expert_slots: experts in flight.
      cache_slots: cache tiles in flight.
      cache_positions: positions of a cache tile.
    """

    rows: int
    context: int
    ring_tiles: int
    expert_slots: int
    cache_slots: int = _CACHE_SLOTS
    cache_positions: int = _CACHE_POSITIONS


def default_settings(layout: Layout, rows: int, context: int) -> Settings:
    """The best settings known for `rows` rows."""
    tiles = _RING_BYTES // (layout.tile_rows * ROW_BYTES)
    tiles = min(max(_MIN_RING_TILES, tiles), layout.first_tiles[-1])
    slots = _EXPERT_SLOTS_ONE_ROW if rows == 1 else _EXPERT_SLOTS
    chosen = layout.config.num_experts_per_token * rows
    return Settings(rows, context, tiles, max(1, min(slots, chosen, layout.local_experts)))


@dataclass(frozen=True)
class Plan:
    """A checked plan.

    Attributes:
      layout: of the weights.
      settings: sizes.
      chip: what it must fit.

    Raises:
      PlanError: a setting is not possible, memory does not suffice (the largest buffers are named),
        or the schedule is not sound.
    """

    layout: Layout
    settings: Settings
    chip: ChipSpec = TPU_V7

    def __post_init__(self) -> None:
        s = self.settings
        if not 1 <= s.rows <= MAX_ROWS:
            raise PlanError(f"plan: rows: expected 1 to {MAX_ROWS}, found {s.rows}")
        for name in ("context", "ring_tiles", "expert_slots", "cache_slots", "cache_positions"):
            if getattr(s, name) < 1:
                raise PlanError(f"plan: {name}: expected at least 1, found {getattr(s, name)}")
        if s.cache_positions % LANES:
            raise PlanError(
                f"plan: cache_positions: expected a multiple of {LANES}, found {s.cache_positions}"
            )
        buffers.check_budget(self.storages, self.chip)
        check_hbm(self.layout, self.chip, s.rows, s.context)
        schedule.check(self.program, self.transfers, self.buffers, phases.PHASES)

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All copies; one semaphore each, two if remote, an array of them if it has slots."""
        s = self.settings
        return phases.transfers(self.layout, s.ring_tiles, s.expert_slots, s.cache_slots)

    @cached_property
    def buffers(self) -> tuple[BufferSpec, ...]:
        """All buffers."""
        return (*_weights(self), *_activations(self), *_attention(self), *_moe(self),
                *_messages(self))  # fmt: skip

    @cached_property
    def storages(self) -> tuple[Storage, ...]:
        """The scratch arrays; buffers that share one take turns."""
        return buffers.storages(self.buffers, phases.PHASES)

    @cached_property
    def program(self) -> tuple[Step, ...]:
        """The schedule of all layers, written out."""
        s = self.settings
        return phases.program(self.layout, s.ring_tiles, s.expert_slots, s.cache_slots)

    def layer_steps(self, kind: LayerKind) -> tuple[Step, ...]:
        """The schedule of one layer."""
        return phases.layer_steps(
            self.layout, kind, self.settings.expert_slots, self.settings.cache_slots
        )

    def rounds(self, kind: LayerKind) -> tuple[Round, ...]:
        """The exchanges of one layer."""
        return tuple(schedule.rounds(self.layer_steps(kind), self.transfers))

    def table(self) -> str:
        """Buffers with their budget, and the exchanges of every kind of layer, as text."""
        lines = [buffers.table(self.buffers, self.storages, self.chip)]
        for kind in self.layout.layer_of_kind:
            found = self.rounds(kind)
            lines.append(f"\n{kind.name}: {len(found)} exchanges")
            for r in found:
                sent = r.transfer.sent_bytes(self.layout.mesh, self.settings.rows)
                cover = ", ".join(r.cover) or "nothing"
                lines.append(
                    f"  {r.transfer.name:18s} {r.transfer.kind:8s}{sent / 1000:8.1f} kB sent, "
                    f"covered by {cover}"
                )
        return "\n".join(lines)


ALWAYS = (phases.PHASES[0], phases.PHASES[-1])


def _weights(p: Plan) -> tuple[BufferSpec, ...]:
    """What streams in from HBM."""
    layout, s = p.layout, p.settings
    c = layout.config
    record = (kda_record_rows(layout, s.rows), LANES)
    words = cache_position_bytes(layout) // WORD_BYTES
    ring = (s.ring_tiles, layout.tile_rows, LANES)
    experts = (s.expert_slots, layout.expert_block.rows, LANES)
    tiles = (s.cache_slots, words, s.cache_positions)
    found = [
        BufferSpec("ring", "slot, row, lane", ring, U32, *ALWAYS, slots=s.ring_tiles),
        BufferSpec("vectors", "parity, row, lane", (2, layout.vector_rows, LANES), F32,
                   *ALWAYS, slots=2),
        BufferSpec("embedding_rows", "B, 8 rows, D words",
                   (s.rows, SUBLANES, layout.embedding_words), U32, "begin", "embed"),
        BufferSpec("experts", "slot, row, lane", experts, U32, "choose", "experts",
                   slots=s.expert_slots),
    ]  # fmt: skip
    if c.kda_layers:
        found += [
            BufferSpec("kda_record", "state, history, replay", record, F32, *ALWAYS),
            BufferSpec("kda_new_record", "as kda_record", record, F32, *ALWAYS),
        ]
    if c.mla_layers:  # the open block takes new positions; rows may straddle two of them
        opened = (2, words, LANES)
        found += [
            BufferSpec("cache_tiles", "slot, latent words, S", tiles, U32, *ALWAYS,
                       slots=s.cache_slots),
            BufferSpec("cache_open", "block, latent words, S", opened, U32, *ALWAYS),
            BufferSpec("cache_new_open", "as cache_open", opened, U32, *ALWAYS),
        ]  # fmt: skip
    return tuple(found)


def _activations(p: Plan) -> tuple[BufferSpec, ...]:
    """The streams, and what a phase leaves for the next."""
    c, mesh = p.layout.config, p.layout.mesh
    hidden = up(c.hidden_size, LANES)
    entries = -(-c.num_hidden_layers // c.attn_res_block_size)
    width = max(mesh.local(c.shared_intermediate_size), mesh.local(c.intermediate_size))
    lhs = p.chip.matmul_rows
    return (
        BufferSpec("stream", "B, D", (SUBLANES, hidden), F32, *ALWAYS),
        BufferSpec("bank", "entry, B, D", (entries, SUBLANES, hidden), F32, *ALWAYS),
        # The bank's part of the next softmax mix: weighted sum, and in three more registers per row
        # its maximum, its denominator and its square sum.
        BufferSpec("bank_mix", "B, D + statistics", (SUBLANES, hidden + 3 * LANES), F32, *ALWAYS),
        BufferSpec("normed", "B, D", (lhs, hidden), BF16, "attention_mix", "head"),
        BufferSpec("hidden", "B, F", (lhs, up(width, LANES)), BF16, "shared_in", "dense_out"),
        BufferSpec("shared", "B, D_local", (SUBLANES, up(mesh.local(c.hidden_size), LANES)), F32,
                   "shared_sum", "latent_up"),
        BufferSpec("tokens", "B", (1, SUBLANES), I32, "token", "token", space=Space.SMEM),
    )  # fmt: skip


def _attention(p: Plan) -> tuple[BufferSpec, ...]:
    """KDA and MLA buffers take turns in the same storage."""
    c, mesh = p.layout.config, p.layout.mesh
    lhs = p.chip.matmul_rows
    kda = up(mesh.local(c.kda.num_heads) * c.kda.head_dim, LANES)
    heads = mesh.local(c.num_attention_heads)
    value = up(heads * c.v_head_dim, LANES)
    gates = up(mesh.local(c.kda.head_dim) + mesh.local(c.kda.num_heads), LANES)
    query = up(heads * c.qk_head_dim, LANES)
    latent = up(c.latent_cache_width, LANES)
    return (
        BufferSpec("gates", "B, f_a and beta", (lhs, gates), F32, "kda_gates", "kda_delta"),
        BufferSpec("projected", "B, q k v g", (lhs, 4 * kda), F32, "kda_in", "kda_delta",
                   "projections"),
        BufferSpec("query", "B, H_local (K + rope)", (lhs, query), F32, "mla_query", "mla_query",
                   "projections"),
        BufferSpec("decay", "B, H_local K", (lhs, kda), F32, "kda_decay", "kda_delta",
                   "channels"),
        BufferSpec("mla_gates", "B, H_local V", (lhs, value), F32, "mla_gate", "mla_out",
                   "channels"),
        BufferSpec("keys", "H_local, B, latent", (heads, lhs, latent), BF16, "mla_query",
                   "mla_attend"),
        BufferSpec("mixed", "H_local, B, latent", (heads, lhs, latent), F32, "mla_attend",
                   "mla_out"),
        BufferSpec("attended", "B, H_local V", (lhs, max(kda, value)), BF16, "kda_delta",
                   "mla_out"),
    )  # fmt: skip


def _moe(p: Plan) -> tuple[BufferSpec, ...]:
    """Routing, and the experts' two matmuls. `spread` has 8 rows per row, see `experts`."""
    c, rows = p.layout.config, p.settings.rows
    latent = up(c.routed_expert_hidden_size, LANES)
    used = min(c.num_experts, rows * c.num_experts_per_token)
    spread = up(SUBLANES * rows, BF16_TILE_ROWS)
    return (
        BufferSpec("scores", "B, E", (SUBLANES, up(c.num_experts, LANES)), F32, "choose", "choose"),
        BufferSpec("expert_list", "distinct experts", (1, used), I32, "choose", "experts",
                   space=Space.SMEM),
        BufferSpec("expert_weights", "B, expert", (SUBLANES, used), F32, "choose", "experts",
                   space=Space.SMEM),
        BufferSpec("spread", "8 B, latent", (spread, latent), BF16, "choose", "experts"),
        BufferSpec("expert_sum", "8 B, latent", (SUBLANES * rows, latent), F32, "experts",
                   "experts"),
    )  # fmt: skip


def _messages(p: Plan) -> tuple[BufferSpec, ...]:
    """Send and receive buffers, one pair per exchange: a message of a peer is never in doubt."""
    ranks, found = p.layout.mesh.ranks, []
    for t in p.transfers:
        if not t.kind.remote:
            continue
        rows = t.message.rows(p.settings.rows)
        sends = ranks if t.kind is schedule.Kind.SCATTER else 1
        send, receive = phases.exchange_buffers(t)
        axes = "rank, row, lane"
        found += [
            BufferSpec(send, axes, (sends, rows, LANES), U32, *ALWAYS),
            BufferSpec(receive, axes, (ranks, rows, LANES), U32, *ALWAYS, remote=True),
        ]
    return tuple(found)
