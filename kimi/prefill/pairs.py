"""Words of two bfloat16 values, in plain JAX: what `pltpu.bitcast` does inside kernels.

A word's low half is the even value of a pair, or the first half of a row
(`kernels.words.pack_bf16`). Rows are kept even values first: a product contracts over both orders
alike, and no value is ever moved between lanes of a large array.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kimi.kernels.chip import LANES, round_up

F32, BF16, U32 = jnp.float32, jnp.bfloat16, jnp.uint32
_HIGH = 0xFFFF0000
# Column i of the identity goes to i / 2, or behind all even ones.
_APART = np.concatenate([np.eye(2 * LANES)[:, 0::2], np.eye(2 * LANES)[:, 1::2]], 1)


def low(words: Array) -> Array:
    """The values in the low halves, bfloat16, exact."""
    return lax.bitcast_convert_type(words << 16, F32).astype(BF16)


def high(words: Array) -> Array:
    """The values in the high halves, bfloat16, exact."""
    return lax.bitcast_convert_type(words & U32(_HIGH), F32).astype(BF16)


def pack(low_values: Array, high_values: Array) -> Array:
    """Words of two arrays of values, rounded to bfloat16."""
    bits = [
        lax.bitcast_convert_type(x.astype(BF16), jnp.uint16).astype(U32)
        for x in (low_values, high_values)
    ]
    return bits[0] | bits[1] << 16


def even_first(x: Array) -> Array:
    """bfloat16 [T, N] -> [T, N], columns 0, 2, 4, .. and then 1, 3, 5, ..; N even.

    Blocks of columns are multiplied by a permutation, which is exact: taking every other column
    apart has the compiler move value by value, 7 to 8 times as long (see `DESIGN.md`).
    """
    tokens, columns = x.shape
    full = padded(x, round_up(columns, 2 * LANES))
    blocks = full.reshape(tokens, -1, 2 * LANES).swapaxes(0, 1)
    contract = (((2,), (0,)), ((), ()))
    apart = lax.dot_general(blocks, jnp.asarray(_APART, BF16), contract, preferred_element_type=F32)
    halves = apart.astype(BF16).reshape(-1, tokens, 2, LANES).transpose(1, 2, 0, 3)
    sides = halves.reshape(tokens, 2, -1)[:, :, : columns // 2]
    return jnp.concatenate([sides[:, 0], sides[:, 1]], 1)


def padded(x: Array, columns: int) -> Array:
    """Zeros behind [T, N] up to so many columns."""
    return jnp.pad(x, ((0, 0), (0, columns - x.shape[1])))


def unpack_bf16(words: Array, count: int) -> Array:
    """[T, W] words of `kernels.words.pack_bf16` -> the `count` values of each row, bfloat16."""
    middle = -(-count // 2)
    return jnp.concatenate([low(words[:, :middle]), high(words[:, : count - middle])], 1)
