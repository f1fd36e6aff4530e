"""MXFP4 to FP8 with the outputs of a matrix side by side: the order in which devices hold experts.

A weight [N, K] goes into panels [rows, 128] of 128 outputs each, in one pass: a tile of 128 outputs
and 32 inputs is transposed, re-encoded by `arithmetic`, two outputs in a word, and read again from
where it lies, all in the first cache. A word of the panel has four inputs of one output, the first
in the lowest bits.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kimi.codecs import arithmetic, mxfp4
from kimi.codecs.arithmetic import BITS_16, K_OF_0, spread
from kimi.codecs.exponents import MAX_OFFSET, MIN_EXPONENT, NARROW
from kimi.codecs.mxfp4 import U8
from kimi.codecs.native import U8_PANELS, U8_ROWS, U64_PANELS, U64_ROWS, compiled, inlined, intp
from kimi.errors import CodecError

PANEL = 128  # outputs of a panel

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Formula = Callable[[np.uint64, np.uint64], np.uint64]

_GROUP_WORDS = mxfp4.GROUP // 8  # of 32 bits
_LEAST_BIAS = np.uint8(mxfp4.SCALE_BIAS + MAX_OFFSET + MIN_EXPONENT)
_HIGHEST = np.uint8(MAX_OFFSET)
_EIGHTS = np.uint32(0x08080808)
_LOW_32, _32_BITS = np.uint64(0x00000000_FFFFFFFF), np.uint64(32)


def encode(packed: U8, scale: U8, block: int, first: int, codes: U32, bias: U8) -> bool:
    """Re-encodes a weight without changing any value, into lanes `first` and following of panels.

    The exponents are those of `fp8.encode_blocks`. Rows of the panels beyond those given below, and
    lanes beyond the weight's, are left alone.

    Args:
      packed: [N, K/2] uint8; any stride between rows.
      scale: [N, K/32] uint8, bytes from 1 to 254.
      block: inputs per FP8 scale, a multiple of 32.
      first: an even number.
      codes: C-contiguous panels [P, at least K/4, 128]; written.
      bias: C-contiguous [P, at least ceil(K / block), 128]; the byte b of a block's scale
        2^(b - 127); written.
    Returns: False if a block's scale bytes are too far apart for this arithmetic: what was written
      is worthless then, and `fp8.encode_blocks` has to do it.
    Raises:
      CodecError: the result did not read back as what went in.
    """
    wrong, widest = _ENCODE(
        packed.view(np.uint64), scale, block // mxfp4.GROUP, first, codes.view(np.uint64), bias
    )
    if widest > NARROW:
        return False
    if wrong:
        raise CodecError("fp8: expected the MXFP4 codes when read back, found others")
    return True


_Encode = Callable[[U64, U8, int, int, U64, U8], tuple[np.uint64, np.uint8]]


def _encoder(assemble: Formula, definition: Formula) -> _Encode:
    """Gives bits that are set if a word is wrong, and the widest range of a block's bytes."""

    @inlined
    def write(tile: U64, k: U64, codes: U64, panel: int, row: int, start: int, stop: int) -> None:
        """A group of inputs; start and stop count words."""
        for i in range(len(tile)):
            for j in range(start, stop):
                # Read before anything is written, which might be the same memory for all that the
                # compiler knows: it would read again, one word at a time.
                word, exponents = tile[i, j], k[j]
                codes[panel, row + 2 * i, j] = assemble(spread(word), exponents)
                codes[panel, row + 2 * i + 1, j] = assemble(spread(word >> BITS_16), exponents)

    @inlined
    def read(
        tile: U64, k: U64, codes: U64, panel: int, row: int, start: int, stop: int
    ) -> np.uint64:
        """Where it differs from what was to be written."""
        wrong = np.uint64(0)
        for i in range(len(tile)):
            for j in range(start, stop):
                word, exponents = tile[i, j], k[j]
                low, high = spread(word), spread(word >> BITS_16)
                wrong |= codes[panel, row + 2 * i, j] ^ definition(low, exponents)
                wrong |= codes[panel, row + 2 * i + 1, j] ^ definition(high, exponents)
        return wrong

    @compiled(U64_ROWS, U8_ROWS, intp, intp, U64_PANELS, U8_PANELS)
    def encode(
        words: U64, scale: U8, per_block: int, first: int, codes: U64, bias: U8
    ) -> tuple[np.uint64, np.uint8]:
        outputs, groups = scale.shape
        bytes_ = np.zeros((groups, PANEL), np.uint8)  # the panel's scales
        tile = np.zeros((_GROUP_WORDS, PANEL // 2), np.uint64)
        k = np.zeros(PANEL, np.uint32)
        k_pairs = k.view(np.uint64)
        wrong, widest, done = np.uint64(0), np.uint8(0), 0
        while done < outputs:
            panel, lane = (first + done) // PANEL, (first + done) % PANEL
            count = min(PANEL - lane, outputs - done)
            start, stop = lane // 2, (lane + count + 1) // 2
            for n in range(count):
                for g in range(groups):
                    bytes_[g, lane + n] = scale[done + n, g]
            for g in range(groups):
                block = g // per_block
                if g % per_block == 0:
                    last = min(g + per_block, groups)
                    width = _choose(bytes_, g, last, bias, panel, block, lane, lane + count)
                    widest = max(widest, width)
                for n in range(lane, lane + count):
                    e = np.uint8(bytes_[g, n] - bias[panel, block, n] + K_OF_0)
                    k[n] = np.uint32(e) * _EIGHTS
                _transpose(words, done, count, g, tile, start)
                write(tile, k_pairs, codes, panel, 2 * _GROUP_WORDS * g, start, stop)
                wrong |= read(tile, k_pairs, codes, panel, 2 * _GROUP_WORDS * g, start, stop)
            done += count
        return wrong, widest

    return encode


@inlined
def _choose(
    scale: U8, first: int, last: int, bias: U8, panel: int, block: int, start: int, stop: int
) -> np.uint8:
    """Writes the byte of a block's scale; the widest range of its groups' bytes."""
    largest, least = np.zeros(PANEL, np.uint8), np.zeros(PANEL, np.uint8)
    largest[start:stop] = scale[first, start:stop]
    least[start:stop] = scale[first, start:stop]
    for g in range(first + 1, last):
        for n in range(start, stop):
            largest[n] = max(largest[n], scale[g, n])
            least[n] = min(least[n], scale[g, n])
    widest = np.uint8(0)
    for n in range(start, stop):
        bias[panel, block, n] = max(largest[n], _LEAST_BIAS) - _HIGHEST
        widest = max(widest, np.uint8(largest[n] - least[n]))
    return widest


@inlined
def _pair(first: np.uint64, second: np.uint64) -> tuple[np.uint64, np.uint64]:
    """The lower 32 bits of both side by side, the first's below; and the upper 32 bits."""
    lower = (first & _LOW_32) | (second << _32_BITS)
    return lower, (first >> _32_BITS) | (second & ~_LOW_32)


@inlined
def _transpose(words: U64, first: int, count: int, group: int, tile: U64, start: int) -> None:
    """The group's inputs of outputs first to first + count: words of two outputs, [4, start ...].

    The last of an odd number is paired with zeros.
    """
    for i in range(2):
        column = 2 * group + i
        for j in range(count // 2):
            one, other = words[first + 2 * j, column], words[first + 2 * j + 1, column]
            tile[2 * i, start + j], tile[2 * i + 1, start + j] = _pair(one, other)
        if count % 2:
            last = _pair(words[first + count - 1, column], np.uint64(0))
            tile[2 * i, start + count // 2], tile[2 * i + 1, start + count // 2] = last


_ENCODE = _encoder(arithmetic.assemble, arithmetic.definition)
