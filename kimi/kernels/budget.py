"""Bytes: what a rank holds in HBM, and what one decoding step reads on the slowest rank."""

import math
from collections import Counter
from dataclasses import dataclass

from kimi.kernels.chip import LANES, MIB, ROW_BYTES, WORD_BYTES, ChipSpec
from kimi.kernels.errors import PlanError
from kimi.kernels.layout import Layout
from kimi.kernels.records import KdaRecord, LatentCache, Rows
from kimi.kernels.routing import Load
from kimi.kernels.stream import Stream

PADDING = "padding"


@dataclass(frozen=True)
class StepBytes:
    """HBM bytes that one rank, the slowest, moves in one step.

    Attributes:
      dense: all tiles of the dense stream.
      small: vectors, states of the KDA layers (read and written), an embedding row per token.
      cache: of the MLA layers, which every rank reads whole.
      experts: of the fullest expert group.
    """

    dense: int
    small: int
    cache: int
    experts: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.dense + self.small + self.cache + self.experts


def dense_bytes(layout: Layout) -> dict[str, int]:
    """Bytes of the dense stream of one rank by family, and what is padding. Sums to all tiles."""
    found: Counter[str] = Counter()
    c = layout.config
    for layer in range(c.num_hidden_layers):
        _count(found, layout.streams[layout.kind(layer)])
    _count(found, layout.head_stream)
    tiles = layout.first_tiles[-1] * layout.tile_rows * ROW_BYTES
    found[PADDING] = tiles - found.total()
    return dict(found)


def _count(found: Counter[str], stream: Stream) -> None:
    for matrix in stream.matrices:
        found[matrix.family] += matrix.payload_bytes


def cache_position_bytes(layout: Layout) -> int:
    """Bytes that one token leaves in one MLA layer's cache, bfloat16 pairs as words."""
    return LatentCache.of(layout, 1, LANES, Rows(1)).words * WORD_BYTES


def step_bytes(layout: Layout, rows: int, context: int, load: Load) -> StepBytes:
    """The traffic of one step of a block of `rows` tokens behind `context` cached ones.

    `load` is an average over layers, see `routing.expert_load`.
    """
    c = layout.config
    dense = layout.first_tiles[-1] * layout.tile_rows * ROW_BYTES
    vectors = (c.num_hidden_layers + 1) * layout.vector_rows * ROW_BYTES
    states = 2 * len(c.kda_layers) * KdaRecord.of(layout, Rows(rows)).total * ROW_BYTES
    rows_read = rows * layout.embedding_words * WORD_BYTES
    cache = len(c.mla_layers) * context * cache_position_bytes(layout)
    experts = len(layout.moe_layers) * load.slowest * layout.expert_block.nbytes
    return StepBytes(dense, vectors + states + rows_read, cache, round(experts))


def held_bytes(layout: Layout, rows: Rows, context: int) -> dict[str, int]:
    """HBM of one rank by array."""
    c = layout.config
    held = {name: math.prod(shape) * WORD_BYTES for name, shape in layout.shapes.items()}
    held["KDA states"] = len(c.kda_layers) * KdaRecord.of(layout, rows).total * ROW_BYTES
    cache = LatentCache.of(layout, context, LANES, rows)
    positions = rows.sequences * cache.blocks * LANES
    held["MLA cache"] = len(c.mla_layers) * positions * cache_position_bytes(layout)
    return held


def check_hbm(layout: Layout, chip: ChipSpec, rows: Rows, context: int) -> None:
    """Raises PlanError, largest array first, if a rank's arrays exceed the chip's HBM."""
    held = held_bytes(layout, rows, context)
    total = sum(held.values())
    if total > chip.hbm_bytes:
        largest = sorted(held.items(), key=lambda item: -item[1])[:3]
        names = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in largest)
        raise PlanError(
            f"HBM of {chip.name}: expected at most {chip.hbm_bytes / 1e9:.2f} GB per rank, found "
            f"{total / 1e9:.2f} GB; largest: {names}"
        )


def dense_table(layout: Layout) -> str:
    """The dense stream of one rank as text: family, bytes per step, share."""
    found = dense_bytes(layout)
    total = sum(found.values())
    lines = [f"{'dense family':24s} {'MB/step':>9s} {'share':>6s}"]
    for name, size in sorted(found.items(), key=lambda item: -item[1]):
        lines.append(f"{name:24s} {size / 1e6:9.1f} {size / total:6.1%}")
    return "\n".join([*lines, f"{'total':24s} {total / 1e6:9.1f}"])


def report(layout: Layout, rows: int = 1, context: int = 0) -> str:
    """The dense stream and the HBM held, as text. All figures follow from shapes."""
    held = held_bytes(layout, Rows(rows), context)
    held["total"] = sum(held.values())
    tile = layout.tile_rows * ROW_BYTES / MIB
    return "\n".join(
        [
            f"{layout.mesh.ranks} ranks, {layout.mesh.name}, {layout.expert_format} experts of "
            f"{layout.expert_block.nbytes} bytes, {layout.first_tiles[-1]} tiles of {tile:.2f} MiB",
            dense_table(layout),
            "held in HBM",
            *(f"{name:12s} {size / 1e9:8.3f} GB" for name, size in held.items()),
        ]
    )
