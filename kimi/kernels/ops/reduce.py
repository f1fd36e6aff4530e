"""Messages between cores: packing, sums of what all ranks sent, and joining of gathered parts.

A message is rows of 128 words, one row per token. bfloat16 values travel in halves: of n values,
word i holds value i in its low and value i + ceil(n / 2) in its high 16 bits, so that each half of
an unpacked row is contiguous.

Oracle: float32 sums in the order of ranks.
"""

import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES
from kimi.kernels.ops.lanes import BF16, F32, U32, pad_lanes

_HIGH = 0xFFFF0000


def pack_bf16(x: Array) -> Array:
    """[R, n] float32, n > 1 -> [R, ceil(n / 2) up to 128] uint32, zeros behind.

    Numerics: rounded to bfloat16.
    """
    middle = -(-x.shape[1] // 2)
    width = -(-middle // LANES) * LANES
    rounded = x.astype(BF16).astype(F32)
    halves = rounded[:, :middle], rounded[:, middle:]
    low, high = (pltpu.bitcast(pad_lanes(half, width, 0.0), U32) for half in halves)
    return (low >> 16) | high


def unpack_bf16(words: Array, count: int) -> Array:
    """[R, W] uint32 -> the `count` values of every row, [R, count] float32, exact."""
    return _join([_halves(words)], count)


def sum_bf16(words: Array, count: int) -> Array:
    """Sums bfloat16 messages of all ranks.

    Args:
      words: [P, R, W] uint32, one message per rank.
      count: values per row.

    Returns: [R, count] float32.
    Numerics: float32, in the order of ranks, the same on every rank.
    """
    low, high = _halves(words[0])
    for p in range(1, words.shape[0]):
        more = _halves(words[p])
        low, high = low + more[0], high + more[1]
    return _join([(low, high)], count)


def sum_values(words: Array) -> Array:
    """Sums float32 messages of all ranks, [P, R, W] uint32 -> [R, W] float32, in their order."""
    total = pltpu.bitcast(words[0], F32)
    for p in range(1, words.shape[0]):
        total = total + pltpu.bitcast(words[p], F32)
    return total


def join_bf16(words: Array, count: int) -> Array:
    """Puts the columns of all ranks side by side: [P, R, W] uint32 -> [R, P count] float32.

    Args:
      words: one bfloat16 message per rank.
      count: values per row of each.
    """
    return _join([_halves(words[p]) for p in range(words.shape[0])], count)


def join_values(words: Array, count: int) -> Array:
    """As `join_bf16` for float32 messages of `count` values a row."""
    parts = [pltpu.bitcast(words[p], F32)[:, :count] for p in range(words.shape[0])]
    return jnp.concatenate(parts, -1)


def _halves(words: Array) -> tuple[Array, Array]:
    """The values in the low and in the high halves, exactly."""
    return pltpu.bitcast(words << 16, F32), pltpu.bitcast(words & U32(_HIGH), F32)


def _join(parts: list[tuple[Array, Array]], count: int) -> Array:
    middle = -(-count // 2)
    pieces = [
        piece for low, high in parts for piece in (low[:, :middle], high[:, : count - middle])
    ]
    return jnp.concatenate(pieces, -1)
