"""Chunk sizes: every size is a compiled program."""

from kimi.kernels.chip import round_up
from kimi.kernels.plan import Plan
from kimi.kernels.records import OPEN_POSITIONS

SIZES = (128, 512, 2048)  # tokens


def chunk_sizes(plan: Plan) -> tuple[int, ...]:
    """The sizes that a sequence's cache has room for: at least the smallest."""
    room = round_up(plan.settings.context, OPEN_POSITIONS)
    return tuple(s for s in SIZES if s <= max(room, SIZES[0]))
