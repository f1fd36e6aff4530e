"""Dense weights: which slices of which tensors make up one matrix of a rank, and its device form.

A `Matrix` is [K, N], to be multiplied as x [rows, K] @ w. Its first columns come as 128-column
*panels*; what is left over as a *tail*, which is stored the other way round:

    panel p   u32 [K/2, 128]: word (r, c) holds inputs 2r, 2r+1 of output 128 p + c
    tail      u32 [K/128, n/2, 128], n = remaining outputs padded to 16: word (k, r, c) holds input
              128 k + c of outputs 2r, 2r+1 behind the last panel; a matmul contracts the lanes

A tail of 7 outputs so takes 16 columns' worth of bytes, not 128: at 32 ranks that saves a tenth
of all dense bytes. K is padded with zeros to 16 (a tail's to 128); the left operand must have zeros
there too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from kimi.kernels.chip import LANES, round_up
from kimi.kernels.mesh import Span
from kimi.kernels.words import U16, U32, pad, pair_rows, panels, split_rows, unpanel

BF16_TILE_ROWS = 16  # rows of bfloat16 in a register tile: K and tails are padded to it


@dataclass(frozen=True)
class Piece:
    """A rectangle of a checkpoint tensor, as some columns of a matrix.

    Attributes:
      tensor: name; within its layer for a layer's tensors.
      rows, cols: spans of the tensor as stored, [out, in].
      transposed: the matrix has the rectangle's inputs as K (a projection). Otherwise its rows:
        absorbed MLA keys, where an "output" is multiplied.
    """

    tensor: str
    rows: Span
    cols: Span
    transposed: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        """[K, N] of these columns."""
        out, size = self.rows[1] - self.rows[0], self.cols[1] - self.cols[0]
        return (size, out) if self.transposed else (out, size)


@dataclass(frozen=True)
class Matrix:
    """One dense matrix of a rank.

    Attributes:
      name: unique in its layer; a phase of the kernel multiplies by it.
      family: for byte tables.
      pieces: side by side along N; all with the same K.
    """

    name: str
    family: str
    pieces: tuple[Piece, ...]

    @property
    def inputs(self) -> int:
        """K."""
        return self.pieces[0].shape[0]

    @property
    def outputs(self) -> int:
        """N."""
        return sum(piece.shape[1] for piece in self.pieces)

    @property
    def panel_inputs(self) -> int:
        """K of the panels, padded."""
        return round_up(self.inputs, BF16_TILE_ROWS)

    @property
    def tail_inputs(self) -> int:
        """K of the tail, padded."""
        return round_up(self.inputs, LANES)

    @property
    def panels(self) -> int:
        """Panels. A remainder as large as a panel when padded is one."""
        full, rest = divmod(self.outputs, LANES)
        return full + (round_up(rest, BF16_TILE_ROWS) == LANES)

    @property
    def tail_outputs(self) -> int:
        """Outputs of the tail, padded to 16; 0 if there is none."""
        return round_up(max(0, self.outputs - self.panels * LANES), BF16_TILE_ROWS)

    @property
    def columns(self) -> int:
        """Columns of a product with panels and tail, padding included."""
        return self.panels * LANES + self.tail_outputs

    @property
    def payload_bytes(self) -> int:
        """Bytes without padding."""
        return self.inputs * self.outputs * 2


@dataclass(frozen=True)
class PackedMatrix:
    """The words of a matrix.

    Attributes:
      panels: u32 [P, K/2, 128].
      tail: u32 [K/128, n/2, 128], n = padded outputs of the tail, maybe 0.
    """

    panels: U32
    tail: U32


def pack_matrix(matrix: Matrix, read: Callable[[Piece], U16]) -> PackedMatrix:
    """The device form of a matrix.

    Args:
      read: the bfloat16 bits of a piece as stored, [rows, cols].
    """
    rows = -(-matrix.inputs // 2)
    front = np.empty((matrix.panels, matrix.panel_inputs // 2, LANES), np.uint32)
    front[:, rows:] = 0
    split = min(matrix.panels * LANES, matrix.outputs)
    if split < matrix.panels * LANES:
        front[-1, :, split % LANES :] = 0
    rest = np.zeros((matrix.tail_outputs, matrix.tail_inputs), np.uint16)
    start = 0
    for piece in matrix.pieces:
        bits = read(piece)
        columns = min(split - start, piece.shape[1])
        if columns > 0:
            words = _input_pairs(bits if piece.transposed else bits.T, columns)
            for panel, own, part in _lanes(start, columns):
                front[panel, :rows, own] = words[:, part]
        if columns < piece.shape[1]:
            behind = (bits if piece.transposed else bits.T)[max(columns, 0) :]
            first = max(start - split, 0)
            rest[first : first + len(behind), : matrix.inputs] = behind
        start += piece.shape[1]
    return PackedMatrix(front, panels(pair_rows(rest)))


def _input_pairs(bits: U16, outputs: int) -> U32:
    """[N, K] as stored -> words [ceil(K/2), outputs] of inputs 2r (low half) and 2r + 1."""
    own = bits[:outputs]
    if own.strides[1] != own.itemsize:  # stored the other way round
        return pair_rows(pad(own.T, round_up(own.shape[1], 2), outputs))
    if own.shape[1] % 2:
        own = pad(own, outputs, own.shape[1] + 1)
    return own.view("<u4").T


def _lanes(start: int, count: int) -> Iterator[tuple[int, slice, slice]]:
    """The columns start .. start + count panel by panel: its number, lanes in it, and columns."""
    done = 0
    while done < count:
        panel, lane = divmod(start + done, LANES)
        size = min(LANES - lane, count - done)
        yield panel, slice(lane, lane + size), slice(done, done + size)
        done += size


def unpack_matrix(
    matrix: Matrix, packed: PackedMatrix, write: Callable[[Piece, U16], None]
) -> None:
    """The inverse of `pack_matrix`: calls `write` with every piece as stored."""
    front = split_rows(unpanel(packed.panels))[: matrix.inputs]
    rest = split_rows(unpanel(packed.tail))[:, : matrix.inputs].T
    split = min(matrix.panels * LANES, matrix.outputs)
    full = np.concatenate([front[:, :split], rest], 1)[:, : matrix.outputs]
    start = 0
    for piece in matrix.pieces:
        stop = start + piece.shape[1]
        columns = full[:, start:stop]
        write(piece, columns.T if piece.transposed else columns)
        start = stop
