"""MXFP4 codes to FP8 bytes by integer arithmetic, fused by XLA into one pass on the CPU.

A code c (0 to 7, sign apart) under a group exponent e, relative to the scale of its block, becomes
the E4M3 magnitude byte

    0           for c = 0
    k           for c = 1 (0.5, whose exponent field is one below that of c = 2)
    k + 4 c     for c >= 2

with k = 8 (e + 6): the exponent field of E4M3 starts at bit 3, and the mantissa bit of E2M1 is the
top one of three. This holds while every nonzero code is a normal number of E4M3 below 2^9, which is
for -5 <= e <= 6 (`exponents` holds these bounds).
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from kimi.codecs.exponents import MAX_OFFSET, MIN_OFFSET
from kimi.codecs.memory import ALIGNMENT, aligned

__all__ = ["MAX_OFFSET", "MIN_OFFSET", "device", "encode"]


_U16 = jnp.uint16


def device() -> jax.Device | None:
    """JAX's CPU, or None where JAX_PLATFORMS leaves it out."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def encode(
    packed: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int8], cpu: jax.Device
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Re-encodes N groups whose exponents e all lie from -5 to 6.

    Args:
      packed: [N, 16] uint8.
      offsets: [N] int8, the exponents e.
      cpu: where to run.
    Returns: FP8 bytes [N, 32], read-only as JAX owns them; and [N], true where reading the group
      back did not give what went in.
    """
    k = (offsets - np.int8(MIN_OFFSET - 1)).view(np.uint8) * np.uint8(8)  # no fast 8-bit shift
    lanes, wrong = _encode(*jax.device_put((_aligned(packed), _aligned(k)), cpu))
    return np.asarray(lanes).view(np.uint8), np.asarray(wrong)


def _aligned(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """`array`, if need be moved to where JAX takes it over as it is: its own copy is slow."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    moved = aligned(array.shape, np.uint8)
    moved[...] = array
    return moved


@jax.jit
def _encode(packed: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[N, 16], [N] uint8 -> two FP8 bytes a lane [N, 16] uint16, and whether they are wrong [N]."""
    packed, k = packed.astype(_U16), k[:, None].astype(_U16)
    lanes = _assemble(packed, k)
    # The barrier makes the check read the finished bytes, not the expression behind them.
    wrong = lax.optimization_barrier(lanes) != _definition(packed, k)
    return lanes, wrong.any(axis=1)


def _assemble(packed: jax.Array, k: jax.Array) -> jax.Array:
    """Both codes of a byte at once; no sum carries from the low half of a lane into the high."""
    codes = (packed | (packed << 4)) & _both(0x0F)
    magnitudes = codes & _both(7)
    one_or_more = ((magnitudes + _both(7)) >> 3) & _both(1)
    two_or_more = ((magnitudes + _both(6)) >> 3) & _both(1)
    # 4 codes + 96 signs = 4 magnitudes + 128 signs, as the sign bit of a code counts 8.
    signed = ((codes + two_or_more) << 2) + (codes & _both(8)) * _U16(12)
    return signed + one_or_more * (k - _U16(4))


def _both(byte: int) -> jax.Array:
    return _U16(byte * 0x0101)


def _definition(packed: jax.Array, k: jax.Array) -> jax.Array:
    """The table at the top of this module, code by code."""

    def one(code: jax.Array) -> jax.Array:
        c = code & _U16(7)
        magnitude = jnp.where(c == 0, _U16(0), jnp.where(c == 1, k, k + (c << 2)))
        return magnitude | ((code >> 3) << 7)

    return one(packed & _U16(15)) | (one(packed >> 4) << 8)
