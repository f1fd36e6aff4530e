"""MXFP4 to FP8 on words whose lanes are outputs: the order in which devices hold experts.

A word of MXFP4 holds the codes of 8 consecutive inputs of one output, the first in the lowest bits;
its two halves become two words of FP8, each with 4 inputs. So a transposed weight is re-encoded
where it lies: word (r, n) gives words (2r, n) and (2r + 1, n), by the arithmetic of `arithmetic`,
four codes at once in the bytes of a word.

Every result is proven before it is returned: the finished words are read again, and compared with
what the codes and exponents mean by a second formula.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from kimi.codecs import arithmetic, mxfp4
from kimi.codecs.exponents import MAX_OFFSET, MIN_EXPONENT, MIN_OFFSET, NARROW
from kimi.codecs.memory import aligned
from kimi.errors import CodecError

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]

_GROUP_WORDS = mxfp4.GROUP // 8
_LEAST_BIAS = mxfp4.SCALE_BIAS + MAX_OFFSET + MIN_EXPONENT


def encode(words: U32, scale: U8, block: int) -> tuple[U32, U8] | None:
    """Re-encodes a transposed weight without changing any value.

    The exponents are those of `fp8.encode_blocks`.

    Args:
      words: [K/8, N] uint32, fastest if it is `aligned`.
      scale: [K/32, N] uint8, bytes from 1 to 254.
      block: inputs per FP8 scale, a multiple of 32.
    Returns: FP8 words [K/4, N], read-only; and for every block the byte b of its scale
      2^(b - 127), [ceil(K / block), N]. None if a block's scale bytes are too far apart for this
      arithmetic, or JAX has no CPU backend: `fp8.encode_blocks` then has to do it.
    Raises:
      CodecError: the result did not read back as what went in.
    """
    found = _exponents(scale, block // mxfp4.GROUP)
    cpu = arithmetic.device()
    if found is None or cpu is None:
        return None
    bias, k = found
    groups, outputs = scale.shape
    values, wrong = _program(cpu)(words.reshape(groups, _GROUP_WORDS, outputs), k)
    if np.asarray(wrong).max(initial=0):  # several times as fast as any()
        raise CodecError("fp8: expected the MXFP4 codes when read back, found others")
    return np.asarray(values).reshape(2 * words.shape[0], outputs), bias


def _exponents(scale: U8, per_block: int) -> tuple[U8, U8] | None:
    """Scale bytes of the blocks [B, N] and 8 (e + 6) of the groups [K/32, N]; None if too wide."""
    groups, outputs = scale.shape
    whole = groups // per_block * per_block
    parts = [scale[:whole].reshape(-1, per_block, outputs)] if whole else []
    if whole < groups:
        parts.append(scale[None, whole:])
    biases = []
    k = aligned(scale.shape, np.uint8)
    row = 0
    for part in parts:
        largest = part.max(axis=1)
        if (largest - part.min(axis=1)).max(initial=0) > NARROW:
            return None
        bias = np.maximum(largest, np.uint8(_LEAST_BIAS)) - np.uint8(MAX_OFFSET)
        rows = part.shape[0] * part.shape[1]
        target = k[row : row + rows].reshape(part.shape)
        np.subtract(part, bias[:, None] + np.uint8(MIN_OFFSET - 1 & 0xFF), out=target)
        row += rows
        biases.append(bias)
    np.multiply(k, np.uint8(8), out=k)
    return np.concatenate(biases), k


def _each(byte: int) -> jax.Array:
    return jnp.uint32(byte * 0x01010101)


@functools.cache
def _program(cpu: jax.Device) -> Callable[[U32, U8], tuple[jax.Array, jax.Array]]:
    """`_encode` on one thread: callers run it on several, each on a block that fits its cache."""
    place = jax.sharding.SingleDeviceSharding(cpu)
    options = {"xla_cpu_multi_thread_eigen": False}
    return jax.jit(_encode, in_shardings=place, out_shardings=place, compiler_options=options)


def _encode(words: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
    """u32 [G, 4, N], u8 [G, N] -> FP8 words [G, 4, 2, N], and bits that are set if wrong [G, N]."""
    k = k.astype(jnp.uint32)
    shifts = jnp.array([0, 16], jnp.uint32)[:, None]
    # The barrier makes the proof read the finished words, not the expression behind them.
    values = lax.optimization_barrier(
        _assemble(_spread(words[:, :, None, :] >> shifts), k[:, None, None, :])
    )
    wrong = jnp.zeros_like(k)
    # Unrolled, as XLA's reductions over all axes but the last two are slow.
    for i in range(_GROUP_WORDS):
        for half in range(2):
            codes = _spread(words[:, i] >> jnp.uint32(16 * half))
            wrong |= values[:, i, half] ^ _definition(codes, k)
    return values, wrong


def _spread(halves: jax.Array) -> jax.Array:
    """The four codes in the lower 16 bits: one in every byte."""
    halves &= jnp.uint32(0xFFFF)
    halves = (halves | (halves << 8)) & jnp.uint32(0x00FF00FF)
    return (halves | (halves << 4)) & _each(0x0F)


def _assemble(codes: jax.Array, k: jax.Array) -> jax.Array:
    """As `arithmetic`, four bytes at once; no sum carries from one byte into the next."""
    magnitudes = codes & _each(7)
    one_or_more = ((magnitudes + _each(7)) >> 3) & _each(1)
    two_or_more = ((magnitudes + _each(6)) >> 3) & _each(1)
    signed = ((codes + two_or_more) << 2) + (codes & _each(8)) * jnp.uint32(12)
    return signed + one_or_more * (k - jnp.uint32(4))


def _definition(codes: jax.Array, k: jax.Array) -> jax.Array:
    """The table of `arithmetic`, read otherwise: 4 c, but 0 for code 1; k unless it is 0; the sign.

    A test compares both with `lookup` for every code and exponent.
    """
    magnitudes = codes & _each(7)
    nonzero = ((magnitudes + _each(7)) >> 3) & _each(1)
    two_or_more = ((magnitudes + _each(6)) >> 3) & _each(1)
    signs = (codes & _each(8)) << 4
    return ((magnitudes + two_or_more - nonzero) << 2) + nonzero * k + signs
