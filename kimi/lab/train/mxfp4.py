"""Rounding trained weights to MXFP4, the format in which checkpoints hold experts."""

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kimi.codecs.mxfp4 import GROUP, MIN_SCALE, SCALE_BIAS, place
from kimi.errors import CodecError

_DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def _grouped(weight: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """[..., K] -> [..., K/32, 32] float32, all finite."""
    if weight.dtype not in _DTYPES:
        names = ", ".join(d.name for d in _DTYPES)
        raise CodecError(f"mxfp4: expected a weight of {names}, found {weight.dtype}")
    if weight.ndim == 0 or weight.shape[-1] % GROUP:
        raise CodecError(
            f"mxfp4: expected a last axis that is a multiple of {GROUP}, "
            f"found shape {list(weight.shape)}"
        )
    groups = weight.astype(np.float32).reshape(*weight.shape[:-1], -1, GROUP)
    finite = np.isfinite(groups)
    if not finite.all():
        bad = int(np.argmin(finite))
        where = place(weight.shape, bad, "input")
        raise CodecError(f"mxfp4: {where}: expected a finite value, found {groups.flat[bad]}")
    return groups


def _codes(groups: npt.NDArray[np.float32], scale: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[..., K/32, 32] and [..., K/32] -> codes [..., K/32, 32], ties to the even mantissa."""
    exponents = SCALE_BIAS - scale.astype(np.int32)
    return np.ldexp(groups, exponents[..., None]).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)


def _pack(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    packed = codes[..., 0::2] | np.left_shift(codes[..., 1::2], np.uint8(4))
    return packed.reshape(*codes.shape[:-2], codes.shape[-2] * GROUP // 2)


def encode(
    weight: npt.NDArray[np.generic],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Rounds to the nearest MXFP4 weight, ties to even.

    The scale of a group is the smallest power of two under which none of its values is clipped (at
    least 2^-126); that of a group of zeros is 1. A weight that already lies on an MXFP4 grid comes
    back exactly, though perhaps under smaller scales than it had.

    Args:
      weight: [..., K] float32, bfloat16 or float16.
    Returns: packed [..., K/2] and scale [..., K/32], both uint8.
    Raises:
      CodecError: another dtype, K not a multiple of 32, or a value that is not finite.
    """
    groups = _grouped(weight)
    # largest = mantissa * 2^exponent, mantissa in [0.5, 1); the largest code is 6 = 0.75 * 2^3.
    mantissa, exponent = np.frexp(np.abs(groups).max(axis=-1, initial=0))
    power = np.where(mantissa == 0, 0, np.where(mantissa <= 0.75, exponent - 3, exponent - 2))
    scale = np.maximum(power + SCALE_BIAS, MIN_SCALE).astype(np.uint8)
    return _pack(_codes(groups, scale)), scale
