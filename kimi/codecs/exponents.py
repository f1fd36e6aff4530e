"""Which power of two serves a whole block of MXFP4 groups in FP8, if any does.

Take the nonzero codes of a block. `low` is the exponent of the lowest set bit of any of its values,
`high` that of the leading bit. E4M3 holds the multiples of 2^-9 below 2^9 that have few enough
significant bits, and those of MXFP4 have two at most. So the block's exponent s serves if
high - 8 <= s <= low + 9, and the block fits exactly if high - low <= 17. One group spans at most 3
(from 0.5 to 6), hence scale bytes at most 14 apart always fit; groups of few magnitudes may lie
further apart, and groups of zeros do not count. A fitting s is always a normal bfloat16: bytes from
1 to 254 put `high - 8` at most at 121 and `low + 9` at least at -118.

If the scale bytes of a block are at most 11 apart (`arithmetic`), as trained weights have them, its
s is max(largest byte - 133, -126) whatever the codes: 6 in the largest group becomes 384, and every
code a normal number of E4M3. Otherwise the codes decide and s = max(high - 8, -126).
"""

import numpy as np
import numpy.typing as npt

from kimi.codecs import mxfp4
from kimi.codecs.mxfp4 import U8
from kimi.errors import CodecError

MIN_EXPONENT = -126  # of a normal bfloat16; accelerators flush subnormal ones to zero
_HIGHEST_BIT = 8  # 2^8 is the largest power of two of E4M3
_FITS = 17  # from 2^-9, the smallest one, to 2^8
MIN_OFFSET, MAX_OFFSET = -5, 6  # exponents of a group for which `arithmetic` holds
NARROW = MAX_OFFSET - MIN_OFFSET

# Exponents of the lowest set bit and of the leading bit of a code. Zero loses every comparison.
_NONE = 1000
_LOW = np.array([_NONE, -1, 0, -1, 1, 0, 2, 1], np.int16)
_HIGH = np.array([-_NONE, -1, 0, 0, 1, 1, 2, 2], np.int16)
_BYTES = np.arange(256)
_BYTE_LOW = np.minimum(_LOW[_BYTES & 7], _LOW[_BYTES >> 4 & 7])
_BYTE_HIGH = np.maximum(_HIGH[_BYTES & 7], _HIGH[_BYTES >> 4 & 7])


def choose(packed: U8, scale: U8, per_block: int, lead: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Chooses the exponents s of all blocks, [R, blocks].

    Args:
      packed: [R, G, 16] uint8.
      scale: [R, G] uint8, bytes from 1 to 254.
      per_block: groups per block; the last block of a row may have fewer.
      lead: the axes that R stands for, to name a row as the caller knows it.
    Raises:
      CodecError: a block that does not fit; names its row and index and the exponents found.
    """
    edges = np.arange(0, scale.shape[1], per_block)
    largest = np.maximum.reduceat(scale, edges, axis=1)
    wide = largest - np.minimum.reduceat(scale, edges, axis=1) > NARROW
    exponents = largest.astype(np.int32) - (mxfp4.SCALE_BIAS + MAX_OFFSET)
    exponents = np.maximum(exponents, MIN_EXPONENT)
    some = np.flatnonzero(wide.any(axis=1))
    power = scale[some].astype(np.int16) - np.int16(mxfp4.SCALE_BIAS)
    low = np.minimum.reduceat(power + _BYTE_LOW[packed[some]].min(axis=2), edges, axis=1)
    high = np.maximum.reduceat(power + _BYTE_HIGH[packed[some]].max(axis=2), edges, axis=1)
    misfit = wide[some] & (high - low > _FITS)
    if misfit.any():
        row, block = (int(i[0]) for i in np.nonzero(misfit))
        where = mxfp4.place((*lead, wide.shape[1]), some[row] * wide.shape[1] + block, "block")
        groups = scale[some[row], block * per_block : (block + 1) * per_block].tolist()
        raise CodecError(
            f"fp8: {where}: expected set bits within {_FITS} powers of two to fit one scale, "
            f"found 2^{low[row, block]} to 2^{high[row, block]} (scale bytes {groups})"
        )
    only_zeros = high < low
    fitting = np.where(only_zeros, 0, np.maximum(high - _HIGHEST_BIT, MIN_EXPONENT))
    exponents[some] = np.where(wide[some], fitting, exponents[some])
    return exponents
