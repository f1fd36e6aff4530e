"""The arrays of a rank (`layout.Weights`) as loading writes them, piece by piece in any order.

An array is rows of 32-bit words:

    dense      [tiles * tile_rows, 128]      experts    [MoE layers * local experts * rows, 128]
    vectors    [(layers + 1) * rows, 128]    embedding  [vocab, words]

What is never written is zero.
"""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kimi.kernels.layout import Layout, Weights

Words = npt.NDArray[np.generic]
ARRAYS = Weights._fields


class Writer(Protocol):
    """Writes rows of ranks to memory, devices or files, from several threads at once."""

    def chunk(self, rank: int, array: str, row: int, rows: int) -> AbstractContextManager[Words]:
        """Memory [rows, width], all of it to be filled; it is written when the block ends."""


def dtype(array: str) -> np.dtype:
    """Of the words of an array."""
    return np.dtype(np.float32 if array == "vectors" else np.uint32)


def flat_shape(layout: Layout, array: str) -> tuple[int, int]:
    """Rows and words of a row of an array of one rank."""
    *lead, width = layout.shapes[array]
    return math.prod(lead), width


def rank_bytes(layout: Layout) -> int:
    """Bytes of all arrays of one rank."""
    return sum(math.prod(shape) * 4 for shape in layout.shapes.values())


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of one array: what a layer, or the output, has of it.

    Attributes:
      array: its name.
      row, rows: first row and how many, as in `Writer`.
      shape: axes of the segment.
    """

    array: str
    row: int
    rows: int
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the values."""
        return math.prod(self.shape) * 4


def pieces(layout: Layout) -> int:
    """Pieces of a model: its layers, and the output with the embedding."""
    return layout.config.num_hidden_layers + 1


def segments(layout: Layout, piece: int) -> tuple[Segment, ...]:
    """What every rank holds of one piece. The pieces together are the whole arrays."""
    c, first = layout.config, layout.first_tiles
    tiles, (rows, lanes) = first[piece + 1] - first[piece], layout.shapes["dense"][1:]
    vectors = layout.vector_rows
    parts = [
        Segment("dense", first[piece] * rows, tiles * rows, (tiles, rows, lanes)),
        Segment("vectors", piece * vectors, vectors, (vectors, lanes)),
    ]
    if piece == c.num_hidden_layers:
        shape = layout.shapes["embedding"]
        parts.append(Segment("embedding", 0, shape[0], shape))
    elif c.is_moe(piece):
        rows, count = layout.expert_block.rows, layout.local_experts
        start = layout.moe_layers.index(piece) * count * rows
        parts.append(Segment("experts", start, count * rows, (count, rows, lanes)))
    return tuple(parts)
