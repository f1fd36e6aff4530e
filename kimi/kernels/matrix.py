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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kimi.codecs.memory import scratch
from kimi.kernels.chip import LANES, round_up
from kimi.kernels.mesh import Span
from kimi.kernels.words import U16, U32, pad, pair_rows
from kimi.kernels.words import panels as panels_of

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
      pieces: side by side along N; all with the same K.
    """

    name: str
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


def pack_panels(matrix: Matrix, bits: Sequence[U16], panels: Span, inputs: Span, out: U32) -> None:
    """Writes some inputs of some panels.

    Args:
      bits: of the pieces as stored, [rows, cols] each.
      panels, inputs: [start, stop) of them, padding included; inputs are even.
      out: [panels, inputs/2, 128]: where to; every word is set.
    """
    first, stop = panels[0] * LANES, min(panels[1] * LANES, matrix.outputs)
    span = inputs[0], min(inputs[1], matrix.inputs)
    rows = -(-max(0, span[1] - span[0]) // 2)
    out[:, rows:] = 0
    if stop - first < len(out) * LANES:
        out[-1, :, (stop - first) % LANES :] = 0
    start = 0
    for piece, value in zip(matrix.pieces, bits, strict=True):
        width = piece.shape[1]
        low, high = max(first - start, 0), min(stop - start, width)
        if low < high and rows:
            for panel, lanes, part in _lanes(start + low - first, high - low):
                columns = slice(low + part.start, low + part.stop)
                place = (columns, slice(*span)) if piece.transposed else (slice(*span), columns)
                _pair_inputs(value[place], piece.transposed, out[panel, :rows, lanes])
        start += width


def _pair_inputs(bits: U16, transposed: bool, out: U32) -> None:
    """Bits as stored, [N, K] if transposed -> words [ceil(K/2), N] of inputs 2r and 2r + 1."""
    if not transposed:
        out[...] = pair_rows(pad(bits, round_up(len(bits), 2), bits.shape[1]))
        return
    # In memory of its own: rows a power of two apart would drive each other out of the cache,
    # where each stays until all of its columns are taken.
    count, inputs = bits.shape
    own = scratch("inputs", (count, 2 * (len(out) + LANES // 8)), np.uint16)
    own[:, :inputs] = bits
    own[:, inputs : 2 * len(out)] = 0
    out[...] = own.view("<u4")[:, : len(out)].T


def pack_tail(matrix: Matrix, bits: Sequence[U16]) -> U32:
    """The words of the tail u32 [K/128, n/2, 128], n maybe 0; bits as for `pack_panels`."""
    split = min(matrix.panels * LANES, matrix.outputs)
    rest = np.zeros((matrix.tail_outputs, matrix.tail_inputs), np.uint16)
    start = 0
    for piece, value in zip(matrix.pieces, bits, strict=True):
        width = piece.shape[1]
        if start + width > split:
            behind = (value if piece.transposed else value.T)[max(split - start, 0) :]
            first = max(start - split, 0)
            rest[first : first + len(behind), : matrix.inputs] = behind
        start += width
    return panels_of(pair_rows(rest))


def _lanes(start: int, count: int) -> Iterator[tuple[int, slice, slice]]:
    """The columns start .. start + count panel by panel: its number, lanes in it, and columns."""
    done = 0
    while done < count:
        panel, lane = divmod(start + done, LANES)
        size = min(LANES - lane, count - done)
        yield panel, slice(lane, lane + size), slice(done, done + size)
        done += size
