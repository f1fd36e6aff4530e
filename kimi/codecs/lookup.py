"""MXFP4 codes to FP8 bytes by table: any exponents that E4M3 can express.

Four codes (two packed bytes) select four FP8 bytes from the row of their group's exponent. Entries
that E4M3 does not hold are NaN.
"""

import functools

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kimi.codecs.mxfp4 import GROUP, U8, VALUES

# Exponents of a group relative to the scale of its block. Beyond them no nonzero code fits: 0.5 is
# still 2^8 at 9, and 4 is still 2^-9 at -11.
MIN_OFFSET, MAX_OFFSET = -11, 9
_NAN = 0x7F
_CHUNK = 1 << 14  # groups: 256 KiB of codes, whose indices are four times as large


@functools.cache
def codes() -> U8:
    """[21, 16]: the FP8 byte of every code (second axis) under every exponent, or NaN."""
    exact = np.ldexp(VALUES, np.arange(MIN_OFFSET, MAX_OFFSET + 1)[:, None])
    rounded = exact.astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    same = rounded.astype(np.float64) == exact
    return np.where(same, rounded.view(np.uint8), np.uint8(_NAN))


@functools.cache
def _quads() -> npt.NDArray[np.uint32]:
    """[21 * 65536]: four FP8 bytes by exponent and two packed bytes."""
    byte = np.arange(256)
    pairs = np.stack([codes()[:, byte & 15], codes()[:, byte >> 4]], axis=-1)  # [21, 256, 2]
    word = np.arange(65536)
    quads = np.concatenate([pairs[:, word & 255], pairs[:, word >> 8]], axis=-1)
    return quads.reshape(-1).view(np.uint32)


@functools.cache
def _pair_values() -> npt.NDArray[np.uint64]:
    """[21 * 256]: by exponent and packed byte, the two real numbers meant, as float32 bits."""
    byte = np.arange(256)
    pairs = np.stack([VALUES[byte & 15], VALUES[byte >> 4]], axis=-1)
    scaled = np.ldexp(pairs, np.arange(MIN_OFFSET, MAX_OFFSET + 1)[:, None, None])
    return scaled.astype(np.float32).view(np.uint64).reshape(-1)


@functools.cache
def _fp8_pair_values() -> npt.NDArray[np.uint64]:
    """[65536]: by two FP8 bytes, the two real numbers meant, as float32 bits."""
    pairs = np.arange(65536, dtype="<u2").view(ml_dtypes.float8_e4m3fn)
    return pairs.astype(np.float32).view(np.uint64)


def encode(packed: U8, offsets: npt.NDArray[np.int8]) -> tuple[U8, npt.NDArray[np.bool_]]:
    """Re-encodes N groups.

    Args:
      packed: [N, 16] uint8.
      offsets: [N] int8, exponents from -11 to 9.
    Returns: FP8 bytes [N, 32]; and [N], true where a group reads back as other numbers.
    """
    values = np.empty((len(packed), GROUP), np.uint8)
    wrong = np.empty(len(packed), np.bool_)
    # Ready-made index rows, as broadcasting over so short a last axis is slow.
    starts = (np.arange(MAX_OFFSET - MIN_OFFSET + 1, dtype=np.intp) << 16).repeat(8).reshape(-1, 8)
    for first in range(0, len(packed), _CHUNK):
        part = slice(first, first + _CHUNK)
        row = (offsets[part] - np.int8(MIN_OFFSET)).view(np.uint8)
        index = np.take(starts, row, axis=0)
        index += np.ascontiguousarray(packed[part]).view("<u2")
        np.take(_quads(), index, out=values[part].view("<u4"), mode="clip")
        wrong[part] = _differs(packed[part], row, values[part])
    return values, wrong


def _differs(packed: U8, row: U8, fp8: U8) -> npt.NDArray[np.bool_]:
    """[N], true where the two sides decode to different numbers; signs of zeros count."""
    want = np.take(_pair_values(), (row.astype(np.intp) << 8)[:, None] + packed)
    got = np.take(_fp8_pair_values(), fp8.view("<u2"))
    return (want != got).any(axis=1)
