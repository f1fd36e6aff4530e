"""MXFP4 codes to FP8 bytes by integer arithmetic, eight at a time in the bytes of a 64-bit word.

A code c (0 to 7, without its sign) under a group exponent e, relative to the scale of its block,
becomes the E4M3 magnitude byte

    0           for c = 0
    k           for c = 1 (0.5, whose exponent field is one below that of c = 2)
    k + 4 c     for c >= 2

with k = 8 (e + 6): the exponent field of E4M3 starts at bit 3, and the mantissa bit of E2M1 is the
top one of three. This holds while every nonzero code is a normal number of E4M3 below 2^9, which is
for -5 <= e <= 6 (`exponents` holds these bounds).

No sum carries from one byte into the next, so what stands in the other bytes does not matter.
"""

import numpy as np

from kimi.codecs.exponents import MIN_OFFSET
from kimi.codecs.native import bytes_of, inlined

BITS_16 = np.uint64(16)
K_OF_0 = np.uint8(1 - MIN_OFFSET)  # k / 8 of exponent 0

_1, _4, _6, _7, _8, _15 = (bytes_of(byte) for byte in (1, 4, 6, 7, 8, 15))
_LOW_16, _LOW_8 = np.uint64(0x0000FFFF_0000FFFF), np.uint64(0x00FF00FF_00FF00FF)
_2_BITS, _3_BITS, _4_BITS, _8_BITS, _96 = (np.uint64(n) for n in (2, 3, 4, 8, 96))


@inlined
def spread(codes: np.uint64) -> np.uint64:
    """The four codes in the lower 16 bits of each 32: one in every byte."""
    codes &= _LOW_16
    codes = (codes | (codes << _8_BITS)) & _LOW_8
    return (codes | (codes << _4_BITS)) & _15


@inlined
def assemble(codes: np.uint64, k: np.uint64) -> np.uint64:
    """FP8 bytes of codes in bytes; k in bytes too."""
    magnitudes = codes & _7
    one_or_more = ((magnitudes + _7) >> _3_BITS) & _1
    two_or_more = ((magnitudes + _6) >> _3_BITS) & _1
    # 4 codes + 96 signs = 4 magnitudes + 128 signs, as the sign bit of a code counts 8.
    signed = ((codes + two_or_more) << _2_BITS) + ((codes & _8) >> _3_BITS) * _96
    return signed + (((one_or_more << _8_BITS) - one_or_more) & (k - _4))


@inlined
def definition(codes: np.uint64, k: np.uint64) -> np.uint64:
    """The table above, read otherwise: 4 c, but 0 for code 1; k unless it is 0; the sign.

    A test compares both with `lookup` for every code and exponent.
    """
    magnitudes = codes & _7
    nonzero = ((magnitudes + _7) >> _3_BITS) & _1
    two_or_more = ((magnitudes + _6) >> _3_BITS) & _1
    body = (magnitudes + two_or_more - nonzero) << _2_BITS
    return body + (((nonzero << _8_BITS) - nonzero) & k) + ((codes & _8) << _4_BITS)
