"""Bytes of HBM that a rank holds, against what the chip has."""

import math

from kimi.kernels.chip import LANES, ROW_BYTES, WORD_BYTES, ChipSpec
from kimi.kernels.errors import PlanError
from kimi.kernels.layout import Layout
from kimi.kernels.records import KdaRecord, LatentCache, Rows


def held_bytes(layout: Layout, rows: Rows, context: int) -> dict[str, int]:
    """HBM bytes of one rank by array."""
    c = layout.config
    held = {name: math.prod(shape) * WORD_BYTES for name, shape in layout.shapes.items()}
    held["KDA states"] = len(c.kda_layers) * KdaRecord.of(layout, rows).total * ROW_BYTES
    cache = LatentCache.of(layout, context, LANES, rows)
    held["MLA cache"] = len(c.mla_layers) * math.prod(cache.shape) * WORD_BYTES
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
