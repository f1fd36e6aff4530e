"""Chunk sizes: every size is a compiled program."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kimi.kernels.chip import round_up
from kimi.kernels.plan import Plan
from kimi.kernels.records import OPEN_POSITIONS

SIZES = (128, 512, 2048)  # tokens


def chunk_sizes(plan: Plan) -> tuple[int, ...]:
    """The sizes that a sequence's cache has room for: at least the smallest."""
    room = round_up(plan.settings.context, OPEN_POSITIONS)
    return tuple(s for s in SIZES if s <= max(room, SIZES[0]))


def split(tokens: int, sizes: tuple[int, ...]) -> list[int]:
    """The chunks of so many tokens: the largest size while it is full, then the least that does.

    A chunk costs mostly what all experts' weights cost: fewer chunks with padding win.
    """
    whole, rest = divmod(tokens, sizes[-1])
    last = [next(s for s in sizes if s >= rest)] if rest else []
    return [sizes[-1]] * whole + last


def chunks(
    tokens: npt.NDArray[np.int32], sizes: tuple[int, ...]
) -> Iterator[tuple[npt.NDArray[np.int32], int]]:
    """Tokens [N] chunk by chunk: padded to its size, and how many of it are valid."""
    done = 0
    for size in split(len(tokens), sizes):
        part = tokens[done : done + size]
        yield np.pad(part, (0, size - len(part))), len(part)
        done += size
