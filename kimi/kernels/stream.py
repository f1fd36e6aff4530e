"""The dense weights of a layer as a stream of equal tiles.

The kernel copies tile after tile into a ring of buffers, far ahead of the matmuls and across the
borders of phases and layers. So all tiles are alike: u32 [tile_rows, 128], and the matrices of a
layer lie in them in the order of use. A matrix is cut into blocks, each in one tile:

    panels   `panels` of them side by side over inputs k0 .. k1, each (k1 - k0)/2 rows
    tail     lane chunks k0/128 .. k1/128, each n/2 rows

A block is one matmul: its panels joined along lanes, its chunks joined along lanes. Wide inputs are
cut at multiples of 256, the height of the matrix unit, in groups of four panels; narrow ones are
not cut, and as many panels as fit share a block. Every layer starts with a new tile.

The attention and the feed-forward part of a layer are cut one by one, so that the kernel has one
program for the experts, whatever kind of attention came before: see `Layout.feed_forward_streams`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kimi.kernels.chip import LANES, SUBLANES, round_up
from kimi.kernels.errors import LayoutError
from kimi.kernels.matrix import Matrix, Piece, pack_panels, pack_tail
from kimi.kernels.mesh import Span
from kimi.kernels.words import U16, U32

GROUP_PANELS = 4  # 512 columns: two full widths of the matrix unit
CUT_INPUTS = 256  # inputs are cut at multiples of this
MIN_TILE_ROWS = 2 * LANES  # room for a cut of one panel, whatever lies before it in the tile


@dataclass(frozen=True)
class Block:
    """A part of one matrix inside one tile.

    Attributes:
      matrix: its name.
      tile: which tile of the layer's stream.
      row: first row in the tile.
      rows: how many.
      panels: [start, stop) of the panels, or None for a part of the tail.
      inputs: [start, stop) of K, padding included.
    """

    matrix: str
    tile: int
    row: int
    rows: int
    panels: Span | None
    inputs: Span


@dataclass(frozen=True)
class Period:
    """A part of a matrix that recurs: so many columns, in whole tiles that are all cut alike.

    Attributes:
      count: how often, one after the other.
      columns, tiles: of one of them.
      stream: the first one, of the whole matrix.
    """

    count: int
    columns: int
    tiles: int
    stream: "Stream"


@dataclass(frozen=True)
class Stream:
    """The stream of one kind of layer, or of its attention or feed-forward part.

    Attributes:
      matrices: in the order of use.
      blocks: in the order of use.
      tiles: how many tiles.
      tile_rows: rows of a tile.
      start_row: where the first block lies. If it is not 0, the first tile is the last one of the
        stream before.
    """

    matrices: tuple[Matrix, ...]
    blocks: tuple[Block, ...]
    tiles: int
    tile_rows: int
    start_row: int = 0

    @property
    def end_row(self) -> int:
        """The row behind the last block, in the last tile."""
        return self.blocks[-1].row + self.blocks[-1].rows

    def matrix(self, name: str) -> Matrix:
        """A matrix by its name."""
        return next(m for m in self.matrices if m.name == name)

    def blocks_of(self, matrix: str) -> tuple[Block, ...]:
        """The blocks of one matrix."""
        return tuple(b for b in self.blocks if b.matrix == matrix)

    def period(self, matrix: str) -> Period | None:
        """The shortest part of a matrix that recurs; None if it is not alone in its tiles, has a
        tail, or does not repeat itself."""
        blocks = self.blocks_of(matrix)
        if len(self.matrices) > 1 or self.start_row or self.matrix(matrix).tail_outputs:
            return None
        for tiles in range(1, self.tiles // 2 + 1):
            part = tuple(b for b in blocks if b.tile < tiles)
            count, columns = self.tiles // tiles, max(b.panels[1] for b in part if b.panels)
            moved = tuple(
                replace(b, tile=b.tile + i * tiles, panels=_shifted(b.panels, i * columns))
                for i in range(count)
                for b in part
            )
            if moved == blocks:
                stream = Stream(self.matrices, part, tiles, self.tile_rows)
                return Period(count, columns * LANES, tiles, stream)
        return None

    def arrivals(self, matrices: Sequence[str]) -> int:
        """Tiles first read while these matrices, consecutive ones, are multiplied."""
        first = {t: next(b.matrix for b in self.blocks if b.tile == t) for t in range(self.tiles)}
        return sum(name in matrices for name in first.values())

    def releases(self, matrices: Sequence[str]) -> int:
        """Tiles read for the last time while these matrices are multiplied."""
        last = {b.tile: b.matrix for b in self.blocks}
        return sum(name in matrices for name in last.values())


def _shifted(span: Span | None, by: int) -> Span | None:
    return span and (span[0] + by, span[1] + by)


class _Cursor:
    """Where the next block goes."""

    def __init__(self, tile_rows: int, row: int):
        self.tile_rows = tile_rows
        self.tile, self.row = 0, row

    @property
    def room(self) -> int:
        return self.tile_rows - self.row

    def next_tile(self) -> None:
        self.tile, self.row = self.tile + 1, 0

    def put(self, matrix: Matrix, rows: int, panels: Span | None, inputs: Span) -> Block:
        block = Block(matrix.name, self.tile, self.row, rows, panels, inputs)
        self.row += rows
        return block


def cut(matrices: Sequence[Matrix], tile_rows: int, start_row: int = 0) -> Stream:
    """Lays matrices into tiles, from `start_row` of the first tile on."""
    cursor = _Cursor(tile_rows, start_row)
    blocks: list[Block] = []
    for matrix in matrices:
        narrow = GROUP_PANELS * matrix.panel_inputs // 2 <= tile_rows
        blocks += _whole_panels(matrix, cursor) if narrow else _cut_panels(matrix, cursor)
        blocks += _tail(matrix, cursor)
    return Stream(tuple(matrices), tuple(blocks), cursor.tile + 1, tile_rows, start_row)


def cut_behind(streams: Sequence[Stream], matrices: Sequence[Matrix], tile_rows: int) -> Stream:
    """Lays matrices so that they may follow any of `streams`, in the last tile of these if it has
    room for the first block."""
    start = max(s.end_row for s in streams)
    stream = cut(matrices, tile_rows, start)
    return stream if stream.blocks[0].tile == 0 else cut(matrices, tile_rows)


def join(first: Stream, second: Stream) -> Stream:
    """Both, one after the other."""
    offset = first.tiles - (second.start_row > 0)
    moved = tuple(replace(b, tile=b.tile + offset) for b in second.blocks)
    matrices, tiles = first.matrices + second.matrices, second.tiles + offset
    return Stream(matrices, first.blocks + moved, tiles, first.tile_rows, first.start_row)


def _whole_panels(matrix: Matrix, cursor: _Cursor) -> Iterator[Block]:
    rows, panel = matrix.panel_inputs // 2, 0
    while panel < matrix.panels:
        count = min(matrix.panels - panel, cursor.room // rows)
        if count == 0:
            cursor.next_tile()
            continue
        span = (panel, panel + count)
        yield cursor.put(matrix, rows * count, span, (0, matrix.panel_inputs))
        panel += count


def _cut_panels(matrix: Matrix, cursor: _Cursor) -> Iterator[Block]:
    panel = 0
    while panel < matrix.panels:
        least = CUT_INPUTS // 2  # rows of one panel
        count = min(GROUP_PANELS, matrix.panels - panel, cursor.tile_rows // least)
        start = 0
        while start < matrix.panel_inputs:
            inputs = cursor.room // (count * least) * CUT_INPUTS
            if inputs == 0:
                cursor.next_tile()
                continue
            stop = min(matrix.panel_inputs, start + inputs)
            rows = (stop - start) // 2 * count
            yield cursor.put(matrix, rows, (panel, panel + count), (start, stop))
            start = stop
        panel += count


def _tail(matrix: Matrix, cursor: _Cursor) -> Iterator[Block]:
    rows, start = matrix.tail_outputs // 2, 0
    while rows and start < matrix.tail_inputs:
        chunks = cursor.room // rows
        if chunks == 0:
            cursor.next_tile()
            continue
        stop = min(matrix.tail_inputs, start + chunks * LANES)
        yield cursor.put(matrix, rows * (stop - start) // LANES, None, (start, stop))
        start = stop


def pack_tiles(stream: Stream, matrices: Iterable[Matrix], read: Callable[[Piece], U16]) -> U32:
    """u32 [tiles, tile_rows, 128]; rows that no block uses are zero.

    Args:
      matrices: those of a rank.
      read: the bfloat16 bits of a piece as stored, [rows, cols].
    """
    tiles = np.zeros((stream.tiles, stream.tile_rows, LANES), np.uint32)
    for matrix in matrices:
        bits = [read(piece) for piece in matrix.pieces]
        tail = pack_tail(matrix, bits)
        for b in stream.blocks_of(matrix.name):
            out = tiles[b.tile, b.row : b.row + b.rows]
            if b.panels is None:
                out[...] = tail[b.inputs[0] // LANES : b.inputs[1] // LANES].reshape(out.shape)
            else:
                shape = b.panels[1] - b.panels[0], -1, LANES
                pack_panels(matrix, bits, b.panels, b.inputs, out.reshape(shape))
    return tiles


def tile_rows(where: str, asked: int, hidden_size: int, matrices: Iterable[Matrix]) -> int:
    """Rows of a tile: those asked for; or, if 0, a panel of the hidden size, at least 512.

    Args:
      matrices: of all kinds that the stream has.
    Raises:
      LayoutError: too few for a block, or no whole register tiles.
    """
    rows = asked or max(512, round_up(hidden_size // 2, SUBLANES))
    least = max(MIN_TILE_ROWS, *(m.tail_outputs // 2 for m in matrices))
    if rows < least or rows % SUBLANES:
        raise LayoutError(
            f"{where}: tile_rows: expected a multiple of {SUBLANES} of at least {least}, "
            f"found {rows}"
        )
    return rows
