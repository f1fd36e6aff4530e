"""MXFP4 to FP8 on words whose lanes are outputs: the order in which devices hold experts.

Weights come in panels [P, K/8, N], of N outputs each. A word of MXFP4 holds the codes of 8
consecutive inputs of one output, the first in the lowest bits; its two halves become two words of
FP8, each with 4 inputs. So a transposed weight is re-encoded where it lies: word (p, r, n) gives
words (p, 2r, n) and (p, 2r + 1, n), by the arithmetic of `arithmetic`, four codes at once in the
bytes of a word.

Every result is proven before it is returned: the finished words are read again, and compared with
what the codes and exponents mean by a second formula.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from kimi.codecs import arithmetic, mxfp4
from kimi.codecs.exponents import MAX_OFFSET, MIN_EXPONENT, MIN_OFFSET, NARROW
from kimi.errors import CodecError

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]

_GROUP_WORDS = mxfp4.GROUP // 8
_LEAST_BIAS = mxfp4.SCALE_BIAS + MAX_OFFSET + MIN_EXPONENT


def encode(weights: Sequence[tuple[U32, U8]], block: int) -> list[tuple[U32, U8]] | None:
    """Re-encodes transposed weights without changing any value, all in one call of XLA.

    The exponents are those of `fp8.encode_blocks`.

    Args:
      weights: words [P, K/8, N], fastest if `aligned`, and scale bytes [P, K/32, N] from 1 to 254;
        also 0 beside words that are 0. At least one weight.
      block: inputs per FP8 scale, a multiple of 32.
    Returns: for each weight FP8 words [P, K/4, N]; and for every block the byte b of its scale
      2^(b - 127), [P, ceil(K / block), N]; read-only. None if a block's scale bytes are too far
      apart for this arithmetic, or JAX has no CPU backend: `fp8.encode_blocks` then has to do it.
    Raises:
      CodecError: the result did not read back as what went in.
    """
    cpu = arithmetic.device()
    if cpu is None:
        return None
    operands = [(words.reshape(*_by_group(scale)), scale) for words, scale in weights]
    found = _program(cpu, block // mxfp4.GROUP)(operands)
    # The largest is found several times as fast as `any`.
    if any(np.asarray(f.spread).max(initial=0) > NARROW for f in found):
        return None
    if any(np.asarray(f.wrong).max(initial=0) for f in found):
        raise CodecError("fp8: expected the MXFP4 codes when read back, found others")
    return [
        (np.asarray(f.values).reshape(len(words), -1, words.shape[2]), np.asarray(f.bias))
        for f, (words, _) in zip(found, weights, strict=True)
    ]


def _by_group(scale: U8) -> tuple[int, int, int, int]:
    count, groups, outputs = scale.shape
    return count, groups, _GROUP_WORDS, outputs


def _each(byte: int) -> jax.Array:
    return jnp.uint32(byte * 0x01010101)


class _Encoded(NamedTuple):
    """What `_encode` finds.

    Attributes:
      values: FP8 words [P, G, 4, 2, N].
      bias: bytes of the blocks' scales [P, B, N].
      spread: how far apart the scale bytes of a block are [P, B, N].
      wrong: bits that are set if a word is wrong [P, G, N].
    """

    values: jax.Array
    bias: jax.Array
    spread: jax.Array
    wrong: jax.Array


_Program = Callable[[list[tuple[U32, U8]]], list[_Encoded]]


@functools.cache
def _program(cpu: jax.Device, per_block: int) -> _Program:
    """`_encode` on the CPU, whatever the default device is."""
    place = jax.sharding.SingleDeviceSharding(cpu)

    def program(weights: list[tuple[jax.Array, jax.Array]]) -> list[_Encoded]:
        return [_encode(words, scale, per_block) for words, scale in weights]

    return jax.jit(program, in_shardings=place, out_shardings=place)


def _encode(words: jax.Array, scale: jax.Array, per_block: int) -> _Encoded:
    """u32 [P, G, 4, N], u8 [P, G, N] -> what `encode` needs."""
    bias, spread, k = _exponents(scale, per_block)
    shifts = jnp.array([0, 16], jnp.uint32)[:, None]
    # The barrier makes the proof read the finished words, not the expression behind them.
    values = lax.optimization_barrier(
        _assemble(_spread(words[:, :, :, None, :] >> shifts), k[:, :, None, None, :])
    )
    wrong = jnp.zeros_like(k)
    # Unrolled, as XLA's reductions over all axes but the last two are slow.
    for i in range(_GROUP_WORDS):
        for half in range(2):
            codes = _spread(words[:, :, i] >> jnp.uint32(16 * half))
            wrong |= values[:, :, i, half] ^ _definition(codes, k)
    return _Encoded(values, bias, spread, wrong)


def _exponents(scale: jax.Array, per_block: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Scale bytes of blocks, and their spread, u8 [P, B, N]; 8 (e + 6) of groups, u32 [P, G, N]."""
    count, groups, outputs = scale.shape
    # Repeating the last group changes neither the largest nor the smallest byte of its block.
    padded = jnp.pad(scale, ((0, 0), (0, -groups % per_block), (0, 0)), "edge")
    blocks = padded.reshape(count, -1, per_block, outputs)
    largest, least = blocks[:, :, 0], blocks[:, :, 0]
    for i in range(1, per_block):
        largest, least = jnp.maximum(largest, blocks[:, :, i]), jnp.minimum(least, blocks[:, :, i])
    bias = jnp.maximum(largest, jnp.uint8(_LEAST_BIAS)) - jnp.uint8(MAX_OFFSET)
    # Finished before they are used, or else they would be computed anew for every word.
    bias, spread = lax.optimization_barrier((bias, largest - least))
    e = (blocks - bias[:, :, None]).reshape(count, -1, outputs)[:, :groups]
    e -= jnp.uint8(MIN_OFFSET - 1 & 0xFF)
    return bias, spread, lax.optimization_barrier(e.astype(jnp.uint32) * 8)


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
