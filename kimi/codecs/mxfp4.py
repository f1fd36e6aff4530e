"""MXFP4: 4-bit floats (E2M1) with one power-of-two scale (E8M0) per 32 inputs.

A weight [..., K] is stored as two byte arrays:
  packed [..., K/2]: two codes per byte, the low nibble is the even input. A code is a sign bit (8)
    and an index into `MAGNITUDES`.
  scale [..., K/32]: byte b stands for 2^(b - 127). Bytes 0 and 255 are refused: 255 is NaN, and 0
    (2^-127) occurs in no valid weight but in any zero-filled hole of a file.
"""

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kimi.errors import CodecError

U8 = npt.NDArray[np.uint8]
GROUP = 32
SCALE_BIAS = 127
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = np.array([*MAGNITUDES, *(-m for m in MAGNITUDES)])  # by code, float64, -0.0 at 8
MIN_SCALE, MAX_SCALE = 1, 254  # bytes

# Formats with the exponent range of float32, in which every code times every scale is exact, apart
# from the overflow that `decode` refuses.
_DECODED_DTYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(ml_dtypes.bfloat16))
# From this byte on 6 * 2^(b - 127) exceeds float32 and bfloat16.
_OVERFLOW_SCALE = 253
_CHUNK = 1 << 13  # groups: 128 KiB of codes, so that the intermediate arrays stay in the cache


def place(shape: tuple[int, ...], flat: int, unit: str) -> str:
    """Names element `flat` of an array [..., units]: `row 3, group 2`, for error messages."""
    *row, last = (int(i) for i in np.unravel_index(flat, shape))
    rows = row[0] if len(row) == 1 else tuple(row)
    return f"row {rows}, {unit} {last}" if row else f"{unit} {last}"


def check(packed: U8, scale: U8) -> None:
    """Checks the two arrays of one MXFP4 weight.

    Raises:
      CodecError: wrong dtype, shapes that do not fit together, or a scale byte 0 or 255 (with its
        row and group).
    """
    check_shapes(packed, scale)
    check_scale(scale)


def check_shapes(packed: U8, scale: U8) -> None:
    """Raises CodecError unless these may be codes and scales of one weight, by dtype and shape."""
    if packed.dtype != np.uint8 or packed.ndim == 0:
        raise CodecError(
            "mxfp4: packed: expected uint8 of at least one axis, "
            f"found {packed.dtype} {list(packed.shape)}"
        )
    groups, rest = divmod(packed.shape[-1] * 2, GROUP)
    if rest or scale.shape != (*packed.shape[:-1], groups):
        raise CodecError(
            f"mxfp4: expected packed [..., K/2] and scale [..., K/{GROUP}] of one K, "
            f"found {list(packed.shape)} and {list(scale.shape)}"
        )


def check_scale(scale: U8) -> None:
    """Raises CodecError unless every scale is a byte from 1 to 254; names the row and group."""
    if scale.dtype != np.uint8:
        raise CodecError(f"mxfp4: scale: expected uint8, found {scale.dtype}")
    if scale.size == 0 or (scale.min() >= MIN_SCALE and scale.max() <= MAX_SCALE):
        return
    bad = int(np.argmax((scale < MIN_SCALE) | (scale > MAX_SCALE)))
    raise CodecError(
        f"mxfp4: {place(scale.shape, bad, 'group')}: expected a scale byte from {MIN_SCALE} to "
        f"{MAX_SCALE}, found {scale.flat[bad]}"
    )


def decode(packed: U8, scale: U8, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[np.generic]:
    """Decodes exactly.

    Args:
      packed: [..., K/2] uint8.
      scale: [..., K/32] uint8.
      dtype: float32, bfloat16 or float64. Negative zero stays negative.
    Returns: [..., K] of `dtype`.
    Raises:
      CodecError: see `check`; another dtype; or a value of 2^128 and more for a 32-bit range.
    """
    check(packed, scale)
    dtype = np.dtype(dtype)
    if dtype not in _DECODED_DTYPES:
        names = ", ".join(d.name for d in _DECODED_DTYPES)
        raise CodecError(f"mxfp4: expected one of the dtypes {names} to decode to, found {dtype}")
    wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    values = np.empty((scale.size, GROUP), wide)
    codes, scales = packed.reshape(scale.size, GROUP // 2), scale.reshape(scale.size)
    byte = np.arange(256)
    pairs = np.stack([VALUES[byte & 15], VALUES[byte >> 4]], axis=-1).astype(wide)
    for start in range(0, scale.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        factor = np.ldexp(wide.type(1), scales[part].astype(np.int32) - SCALE_BIAS)
        chunk = np.take(pairs, codes[part], axis=0).reshape(-1, GROUP)
        with np.errstate(over="ignore"):
            np.multiply(chunk, factor[:, None], out=values[part])
    if wide == np.float32 and scale.size and scale.max() >= _OVERFLOW_SCALE:
        _check_overflow(values, scale)
    return values.reshape(*packed.shape[:-1], packed.shape[-1] * 2).astype(dtype, copy=False)


def _check_overflow(values: npt.NDArray[np.generic], scale: U8) -> None:
    infinite = np.isinf(values).any(axis=-1)  # [groups]
    if infinite.any():
        bad = int(np.argmax(infinite))
        raise CodecError(
            f"mxfp4: {place(scale.shape, bad, 'group')}: expected values below 2^128, found larger "
            f"ones (scale byte {scale.flat[bad]}); decode to float64"
        )
