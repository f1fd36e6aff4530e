"""The inverses of packing: words, matrices, tiles, vectors and experts back to what they hold."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kimi.checkpoint import PackedWeight
from kimi.codecs import fp8, mxfp4
from kimi.kernels.chip import LANES
from kimi.kernels.experts import SCALES_PER_CHUNK, CodedMatrix, ExpertBlock, ExpertFormat
from kimi.kernels.matrix import Matrix, Piece
from kimi.kernels.mesh import Span
from kimi.kernels.stream import Block, Stream
from kimi.kernels.vectors import F32, Vector, offsets
from kimi.kernels.words import U8, U16, U32


def split_rows(words: U32) -> U16:
    """The inverse of `pair_rows`."""
    halves = np.stack([words & 0xFFFF, words >> 16], 1)
    return halves.reshape(2 * words.shape[0], *words.shape[1:]).astype(np.uint16)


def byte_rows(values: U8) -> U32:
    """[N, 4R] bytes, an input per byte -> [R, N] words: rows 4r (lowest byte) to 4r + 3.

    With MXFP4 codes [N, K/2] as stored, whose low nibble is the even input, that makes words of the
    eight inputs 8r to 8r + 7, the first in the lowest bits.
    """
    return np.ascontiguousarray(values).view("<u4").T.astype(np.uint32)


def unbyte_rows(words: U32) -> U8:
    """The inverse of `byte_rows`: [R, N] words -> [N, 4R] bytes."""
    return np.ascontiguousarray(words.T).astype("<u4").view(np.uint8)


def unpanel(value: U32) -> U32:
    """The inverse of `panels`, padding included: [P, R, 128] -> [R, P * 128]."""
    count, rows, lanes = value.shape
    return value.swapaxes(0, 1).reshape(rows, count * lanes)


def unpack_bf16(words: U32, columns: int) -> U16:
    """The inverse of `pack_bf16`, for words [R, ceil(columns/2)]."""
    both = np.concatenate([words & 0xFFFF, words >> 16], 1).astype(np.uint16)
    return both[:, :columns]


class PackedMatrix(NamedTuple):
    """The words of a matrix: u32 [P, K/2, 128] and [K/128, n/2, 128]."""

    panels: U32
    tail: U32


def part_of(packed: PackedMatrix, block: Block) -> U32:
    """The words of a block as a view [units, rows, 128] into its matrix."""
    start, stop = block.inputs
    if block.panels is None:
        return packed.tail[start // LANES : stop // LANES]
    return packed.panels[slice(*block.panels), start // 2 : stop // 2]


def unpack_matrix(
    matrix: Matrix, packed: PackedMatrix, write: Callable[[Piece, U16], None]
) -> None:
    """The inverse of `pack_panels` and `pack_tail`: calls `write` with every piece as stored."""
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


def unpack_tiles(stream: Stream, tiles: U32) -> dict[str, PackedMatrix]:
    """The inverse of `pack_tiles`."""
    packed = {
        m.name: PackedMatrix(
            np.zeros((m.panels, m.panel_inputs // 2, LANES), np.uint32),
            np.zeros((m.tail_inputs // LANES, m.tail_outputs // 2, LANES), np.uint32),
        )
        for m in stream.matrices
    }
    for b in stream.blocks:
        part = part_of(packed[b.matrix], b)
        part[...] = tiles[b.tile, b.row : b.row + b.rows].reshape(part.shape)
    return packed


def unpack_vectors(
    vectors: tuple[Vector, ...], array: F32, write: Callable[[str, Span | None, F32], None]
) -> None:
    """The inverse: calls `write` with the name, the span and the rank's values [span, ...]."""
    for vector, row in zip(vectors, offsets(vectors).values(), strict=True):
        values = array[row : row + vector.device_rows].reshape(vector.kernel_size, -1)
        values = values[:, : vector.width].T
        lead = vector.shape if vector.rows is None else (vector.channels, *vector.shape[1:])
        for name, part in zip(vector.tensors, np.split(values, len(vector.tensors)), strict=True):
            write(name, vector.rows, part[:: vector.repeat].reshape(lead))


def unpack_expert(expert: ExpertBlock, block: U32) -> tuple[PackedWeight | fp8.Fp8Blocks, ...]:
    """The inverse of `ExpertBlock.pack`: gate, up and down; for FP8 in the form of its codec."""
    both, down = _unpack(expert.gate_up, block), _unpack(expert.down, block)
    sides = slice(0, expert.width), slice(expert.width, 2 * expert.width)
    parts = [tuple(part[side] for part in both) for side in sides]
    return tuple(_weight(expert.format, *part) for part in (*parts, down))


def _unpack(form: CodedMatrix, block: U32) -> tuple[U8, U8]:
    """Codes [N, bytes] and scales [N, groups]."""
    codes = block[form.row : form.scale_row].reshape(form.panels, form.panel_rows, LANES)
    rows = -(-form.inputs // form.format.per_word)
    words = unpanel(codes)[:rows, : form.outputs]
    scale_words = block[form.scale_row : form.stop].reshape(-1, 1, SCALES_PER_CHUNK, LANES)
    shifts = np.arange(0, 32, 8, dtype=np.uint32)[:, None, None]
    chunks = (scale_words >> shifts & 0xFF).reshape(-1, SCALES_PER_CHUNK, LANES)
    chunks = chunks[: form.scale_groups * form.panels]
    full = chunks.reshape(form.scale_groups, form.panels, SCALES_PER_CHUNK, LANES)
    scales = full.transpose(1, 3, 0, 2).reshape(form.panels * LANES, -1).astype(np.uint8)
    return unbyte_rows(words), scales[: form.outputs, : -(-form.inputs // form.format.group)]


def _weight(form: ExpertFormat, codes: U8, scales: U8) -> PackedWeight | fp8.Fp8Blocks:
    if form is ExpertFormat.MXFP4:
        return PackedWeight(codes, scales)
    exponents = (scales.astype(np.uint16) << 7).view(fp8.SCALE)
    return fp8.Fp8Blocks(codes.view(fp8.FP8), exponents)


def decoded(
    weight: PackedWeight | fp8.Fp8Blocks, dtype: DTypeLike = np.float32, block: int = fp8.BLOCK
) -> NDArray[np.generic]:
    """The values of a weight, [..., K]; exact in float64, in float32 infinite from 2^128 on."""
    if isinstance(weight, PackedWeight):
        return mxfp4.decode(weight.packed, weight.scale, dtype)
    values = weight.values.astype(dtype)
    factor = np.repeat(weight.scales.astype(dtype), block, axis=-1)
    with np.errstate(over="ignore"):
        return values * factor[..., : values.shape[-1]]
