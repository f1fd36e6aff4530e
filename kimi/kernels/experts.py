"""A routed expert's slice as one contiguous block: codes and scales, fetched by a single copy.

u32 [rows, 128], in this order (K inputs, N outputs, F the rank's share of the inner width):

    gate_up         K = latent, N = gate F then up F: panels of [K/8, 128] words, or K/4 for FP8
    gate_up_scales  see below
    down            K = F, N = latent: panels likewise
    down_scales

A word holds 8 MXFP4 codes or 4 FP8 values of consecutive inputs, the first in the lowest bits:
`pltpu.bitcast` yields them as rows. N is padded to 128. K is padded to whole register tiles: 64
inputs of MXFP4, 32 of FP8; the left operand must be zero there.

A scale is a byte b, the float32 with bits b << 23, so 2^(b - 127); b = 0 is padding and yields 0.
It covers 32 inputs of one output, or 256 for FP8. Eight consecutive scales of 128 outputs (of one
panel) are a chunk, exactly one register of bytes; chunk (group, panel), group counting 8 scales, is
number group * panels + panel, and word block i holds chunks 4i to 4i + 3, the first in the lowest
byte. So the scales of a chunk are ((words[8 i : 8 i + 8] >> 8 j) & 255) << 23, i, j static.

For MXFP4 a chunk covers 256 inputs, one push of the matrix unit. The kernel spreads a row x over 8
left-operand rows, of which row i keeps inputs 32 i to 32 i + 31 of each 256: the product has the
partial sums of the 8 scale groups in 8 rows, and the chunk scales them all in one multiplication.

Packing is bound by the processor. CPU-seconds a GB of packed experts, two cores:

    FP8   a transposed copy of the matrix, re-encoded, then moved into panels              1.4
          straight into panels; one call of XLA for both matrices of an expert             0.95
          the same while the system takes freed memory back: results are new memory        2.4
          machine code, a tile of a panel at a time, no memory of its own (this)           0.75
          of which transposition 0.22, values 0.20, their proof 0.15, scales 0.07
    MXFP4 a transposed copy of the matrix, moved into panels                               0.64
          straight into panels (this)                                                      0.35

    tiles, FP8: transposed one word at a time 0.85; two words at a time 0.75; all inputs of a block
    before any is re-encoded 1.1; values loaded again behind a store, so not vectorised, 1.3
    MXFP4, transposing alone: numpy, 128 rows at a time 0.10 to 0.19; through a copy of them 0.26;
    whole matrix 0.22 to 0.40; XLA 0.26
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import numpy as np
import numpy.typing as npt

from kimi.checkpoint import PackedWeight
from kimi.codecs import fp8, mxfp4
from kimi.kernels.chip import LANES, ROW_BYTES, SUBLANES, round_up
from kimi.kernels.errors import LayoutError
from kimi.kernels.words import U8, U32

SCALES_PER_CHUNK = SUBLANES
CHUNKS_PER_BLOCK = 4  # bytes of a word

ExpertSlice = tuple[PackedWeight, PackedWeight, PackedWeight]  # gate, up, down


class ExpertFormat(StrEnum):
    """How expert weights are held in memory. Values are those of the checkpoint in both."""

    MXFP4 = "mxfp4"
    FP8 = "fp8"

    @property
    def per_word(self) -> int:
        """Inputs in a 32-bit word."""
        return 8 if self is ExpertFormat.MXFP4 else 4

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return mxfp4.GROUP if self is ExpertFormat.MXFP4 else fp8.BLOCK


@dataclass(frozen=True)
class CodedMatrix:
    """The form of one quantised matrix [K, N] and where it lies in the block.

    Attributes:
      format: of the codes.
      inputs, outputs: K and N without padding.
      row: first row of its codes; the scales follow them.
    """

    format: ExpertFormat
    inputs: int
    outputs: int
    row: int

    @property
    def panels(self) -> int:
        """Panels of 128 outputs."""
        return -(-self.outputs // LANES)

    @property
    def panel_rows(self) -> int:
        """Rows of a panel's codes."""
        return round_up(-(-self.inputs // self.format.per_word), SUBLANES)

    @property
    def padded_inputs(self) -> int:
        """K as the codes hold it."""
        return self.panel_rows * self.format.per_word

    @property
    def scale_row(self) -> int:
        """First row of the scales."""
        return self.row + self.panels * self.panel_rows

    @property
    def scale_groups(self) -> int:
        """Groups of 8 scales along K."""
        return -(-self.inputs // (self.format.group * SCALES_PER_CHUNK))

    @property
    def scales_shape(self) -> tuple[int, int, int]:
        """Scales in panels, before they become chunks."""
        return self.panels, self.scale_groups * SCALES_PER_CHUNK, LANES

    @property
    def stop(self) -> int:
        """The row behind the scales."""
        chunks = self.scale_groups * self.panels
        return self.scale_row + -(-chunks // CHUNKS_PER_BLOCK) * SUBLANES

    def chunk(self, group: int, panel: int) -> tuple[int, int]:
        """First row and byte (0 to 3) of a chunk of scales."""
        block, byte = divmod(group * self.panels + panel, CHUNKS_PER_BLOCK)
        return self.scale_row + block * SUBLANES, byte


@dataclass(frozen=True)
class ExpertBlock:
    """The block of one expert on one rank.

    Attributes:
      format: of the codes.
      latent: width of the experts' inputs and outputs.
      width: F, the rank's share of the inner width.
    """

    format: ExpertFormat
    latent: int
    width: int

    @property
    def gate_up(self) -> CodedMatrix:
        """[latent, 2 F]."""
        return CodedMatrix(self.format, self.latent, 2 * self.width, 0)

    @property
    def down(self) -> CodedMatrix:
        """[F, latent]."""
        return CodedMatrix(self.format, self.width, self.latent, self.gate_up.stop)

    @property
    def rows(self) -> int:
        """Rows of the block."""
        return self.down.stop

    @property
    def nbytes(self) -> int:
        """Bytes that one use of the expert moves."""
        return self.rows * ROW_BYTES

    def pack(
        self, gate: PackedWeight, up: PackedWeight, down: PackedWeight, out: U32 | None = None
    ) -> U32:
        """The block [rows, 128] from the rank's slices: gate, up [F, latent], down [latent, F].

        Args:
          out: where to write it; every word is set.
        Raises:
          CodecError: no MXFP4 weight, or exponents too far apart for FP8 (see `fp8.encode_blocks`).
        """
        block = np.empty((self.rows, LANES), np.uint32) if out is None else out
        for form, parts in ((self.gate_up, (gate, up)), (self.down, (down,))):
            matrix = _Stored.of(form, parts)
            if self.format is ExpertFormat.FP8:
                _pack_fp8(matrix, block)
            else:
                _pack_mxfp4(matrix, block)
        return block


def slice_expert(weights: ExpertSlice, start: int, stop: int, first: int = 0) -> ExpertSlice:
    """The share start .. stop of the inner width of w1 (gate), w3 (up) and w2 (down).

    Args:
      first: the row of w1 and w3 that their arrays begin with; w2 is whole.
    Raises:
      LayoutError: the share would split a scale group of w2.
    """
    if start % mxfp4.GROUP or stop % mxfp4.GROUP:
        raise LayoutError(
            f"expert slice: expected bounds that are multiples of {mxfp4.GROUP}, "
            f"found {start} and {stop}"
        )
    gate, up, down = weights
    codes, scales = slice(start // 2, stop // 2), slice(start // mxfp4.GROUP, stop // mxfp4.GROUP)
    rows = slice(start - first, stop - first)
    return (
        PackedWeight(gate.packed[rows], gate.scale[rows]),
        PackedWeight(up.packed[rows], up.scale[rows]),
        PackedWeight(down.packed[:, codes], down.scale[:, scales]),
    )


@dataclass(frozen=True)
class _Stored:
    """What goes into one matrix.

    Attributes:
      form: of the matrix.
      parts: weights whose outputs lie side by side.
      scale: [N, K/32], theirs.
    """

    form: CodedMatrix
    parts: Sequence[PackedWeight]
    scale: U8

    @classmethod
    def of(cls, form: CodedMatrix, parts: Sequence[PackedWeight]) -> Self:
        """Checked. Raises CodecError."""
        for part in parts:
            mxfp4.check_shapes(part.packed, part.scale)
        scale = np.concatenate([_together(part.scale) for part in parts])
        mxfp4.check_scale(scale)
        return cls(form, parts, scale)

    def codes(self, block: U32) -> U32:
        """Where the codes go: [panels, rows, 128]."""
        form = self.form
        return block[form.row : form.scale_row].reshape(form.panels, form.panel_rows, LANES)


def _pack_mxfp4(matrix: _Stored, block: U32) -> None:
    form = matrix.form
    _lay([_together(part.packed).view("<u4") for part in matrix.parts], matrix.codes(block))
    scales = np.empty(form.scales_shape, np.uint8)
    _lay([matrix.scale], scales)
    _pack_scales(form, scales, block)


def _pack_fp8(matrix: _Stored, block: U32) -> None:
    from kimi.codecs import transposed  # compiles, which MXFP4 does without

    form, codes, start = matrix.form, matrix.codes(block), 0
    scales = np.zeros(form.scales_shape, np.uint8)
    codes[:, -(-form.inputs // form.format.per_word) :] = 0
    codes[-1, :, (form.outputs - 1) % LANES + 1 :] = 0
    for part in matrix.parts:
        stop = start + len(part.packed)
        own = part.packed, matrix.scale[start:stop]
        if not transposed.encode(*own, fp8.BLOCK, start, codes, scales):
            _pack_far_apart(matrix, codes, scales)
            break
        start = stop
    _pack_scales(form, scales, block)


def _pack_far_apart(matrix: _Stored, codes: U32, scales: U8) -> None:
    """Any exponents that have an FP8 form, slowly."""
    packed = np.concatenate([part.packed for part in matrix.parts])
    encoded = fp8.encode_blocks(packed, matrix.scale)
    _lay([encoded.values.view("<u4")], codes)
    _lay([(encoded.scales.view(np.uint16) >> 7).astype(np.uint8)], scales)  # of bfloat16


def _together(value: U8) -> U8:
    """Rows that lie apart brought together, each moved as one item."""
    if value.flags.c_contiguous:
        return value
    return np.ascontiguousarray(value.view(f"V{value.shape[1]}")).view(np.uint8)


def _lay[T: np.generic](values: Sequence[npt.NDArray[T]], out: npt.NDArray[T]) -> None:
    """Values [N, R] side by side along N, into panels [P, >= R, 128]; zeros elsewhere.

    Panels are written one after the other: the 128 rows that one of them takes stay in the first
    cache while all of their columns are read.
    """
    rows, start = values[0].shape[1], 0
    out[:, rows:] = 0
    for value in values:
        done = 0
        while done < len(value):
            panel, lane = divmod(start + done, LANES)
            left = len(value) - done
            count = 1 if lane or left < LANES else left // LANES
            lanes = min(LANES - lane, left)
            part = value[done : done + count * lanes].reshape(count, lanes, rows)
            out[panel : panel + count, :rows, lane : lane + lanes] = part.swapaxes(1, 2)
            done += count * lanes
        start += len(value)
    if start % LANES:
        out[-1, :rows, start % LANES :] = 0


def _pack_scales(form: CodedMatrix, scales: U8, block: U32) -> None:
    """Writes scales [panels, groups * 8, 128]."""
    size = SCALES_PER_CHUNK * LANES
    by_group = scales.reshape(form.panels, form.scale_groups, size).swapaxes(0, 1)
    out = block[form.scale_row : form.stop].view(np.uint8).reshape(-1, size, CHUNKS_PER_BLOCK)
    count = form.scale_groups * form.panels
    chunks = np.empty((len(out) * CHUNKS_PER_BLOCK, size), np.uint8)
    chunks[:count].reshape(by_group.shape)[...] = by_group
    chunks[count:] = 0
    for byte in range(CHUNKS_PER_BLOCK):
        out[..., byte] = chunks[byte::CHUNKS_PER_BLOCK]
