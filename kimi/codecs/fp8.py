"""FP8 (E4M3) with one bfloat16 power-of-two scale per block of inputs: MXFP4 re-encoded losslessly.

The matrix unit reads FP8 but not MXFP4. E4M3 has room to spare for a 4-bit code, so eight MXFP4
groups with eight scales can share a single one: code * 2^(b - 127) = fp8 * 2^s, exactly, wherever
one s serves the whole block (`exponents` says where, and which s is taken).

Nothing is rounded: bytes come from a table whose every entry was compared with the real product
(`lookup`), and every result is read back and compared with what went in before it is returned.
Loading needs this module for unusual weights only, see `transposed`.
"""

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kimi.codecs import exponents, lookup, mxfp4
from kimi.codecs.mxfp4 import U8
from kimi.errors import CodecError

BLOCK = 256
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
SCALE = np.dtype(ml_dtypes.bfloat16)
_BIAS, _EXPONENT_SHIFT = 127, 7  # of bfloat16


@dataclass(frozen=True)
class Fp8Blocks:
    """An FP8 weight with its scales.

    Attributes:
      values: [..., K] float8_e4m3fn.
      scales: [..., ceil(K / block)] bfloat16, powers of two.
    """

    values: npt.NDArray[np.generic]
    scales: npt.NDArray[np.generic]


def encode_blocks(packed: U8, scale: U8, block: int = BLOCK) -> Fp8Blocks:
    """Re-encodes an MXFP4 weight without changing any value; negative zeros stay negative.

    Blocks run along the last axis, from input 0; the last one is shorter if K is no multiple of
    `block`.

    Args:
      packed: [..., K/2] uint8.
      scale: [..., K/32] uint8.
      block: inputs per FP8 scale, a multiple of 32.
    Raises:
      CodecError: the input is no MXFP4 weight (see `mxfp4.check`), or the exponents of a block lie
        too far apart for FP8; the message names its row and index.
    """
    mxfp4.check(packed, scale)
    if block <= 0 or block % mxfp4.GROUP:
        raise CodecError(f"fp8: expected a block that is a multiple of 32 inputs, found {block}")
    lead, groups = scale.shape[:-1], scale.shape[-1]
    rows = math.prod(lead)
    by_group = packed.reshape(rows, groups, mxfp4.GROUP // 2)
    per_block = block // mxfp4.GROUP
    by_row = scale.reshape(rows, groups)
    chosen = exponents.choose(by_group, by_row, per_block, lead)
    offsets = by_row.astype(np.int32) - mxfp4.SCALE_BIAS
    offsets -= chosen.repeat(per_block, axis=1)[:, :groups]
    # Only groups of zeros lie outside, and zeros are zeros under any exponent.
    np.clip(offsets, lookup.MIN_OFFSET, lookup.MAX_OFFSET, out=offsets)
    codes = by_group.reshape(rows * groups, mxfp4.GROUP // 2)
    values, wrong = lookup.encode(codes, offsets.reshape(-1).astype(np.int8))
    if wrong.any():
        where = mxfp4.place(scale.shape, int(np.argmax(wrong)), "group")
        raise CodecError(f"fp8: {where}: expected the MXFP4 values when read back, found others")
    scales = ((chosen + _BIAS).astype(np.uint16) << _EXPONENT_SHIFT).view(SCALE)
    return Fp8Blocks(
        values.view(FP8).reshape(*lead, groups * mxfp4.GROUP),
        scales.reshape(*lead, scales.shape[1]),
    )
