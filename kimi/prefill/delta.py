"""The gated delta rule for many tokens, in chunks of the WY form; stable over all log decays.

Per head, with memory S [V, K] (held transposed as in `kernels.ops.kda`):

    S <- S diag(e^g);  S <- S + beta (v - S k) k^T;  o = S q

One Pallas kernel goes over the sequence; the memories of all heads stay in VMEM, and the heads'
chains of products, independent of each other, fill the matrix unit.

Within a chunk of 64 tokens decays are taken apart as e^(G_t - m) e^(m - G_s), G the sum of log
decays so far and m its value in the middle of t's 16 tokens. With log decays above -5 a token, t is
within 40 nats of m; s is within 40 of it or earlier, where its factor is below one and may vanish,
as the whole does. Later s are cut off before the exponential and masked behind it.

Oracle: reference.kda.recurrent.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.refs import Ref
from kimi.prefill.pairs import F32

CHUNK = 64  # tokens of a step of the loop over the sequence
_TILE = 16  # tokens with a common middle
_FARTHEST = 40.0  # nats from it: half a tile of decays of -5


class Rows(NamedTuple):
    """T tokens of H heads, float32; T a multiple of `CHUNK`. A token with beta = 0 and g = 0 leaves
    the memory as it is, whatever its finite q, k and v are.

    Attributes:
      q, k: [T, H K], heads side by side, normalised, q scaled.
      v: [T, H V].
      g: [T, H K] log decay, -5 to 0.
      beta: [T, H].
    """

    q: Array
    k: Array
    v: Array
    g: Array
    beta: Array


_PLAIN, _RIGHT_TURNED, _LEFT_TURNED = (((1,), (0,)), ((1,), (1,)), ((0,), (0,)))
_Contract = tuple[tuple[int, ...], tuple[int, ...]]


def _product(a: Array, b: Array, contract: _Contract = _PLAIN) -> Array:
    """A product of float32 matrices, exact to float32."""
    return lax.dot_general(
        a, b, (contract, ((), ())), precision=lax.Precision.HIGHEST, preferred_element_type=F32
    )


def _place() -> tuple[Array, Array]:
    """Row and column of every element of a square of the chunk."""
    shape = (CHUNK, CHUNK)
    return lax.broadcasted_iota(jnp.int32, shape, 0), lax.broadcasted_iota(jnp.int32, shape, 1)


def unit_lower_inverse(lower: Array) -> Array:
    """(I + L)^-1 for a strictly lower triangular L [CHUNK, CHUNK].

    By doubling: as stable as forward substitution, see `reference.kda`.
    """
    row, column = _place()
    inverse = jnp.where(row == column, 1.0, 0.0)
    for bit in range(CHUNK.bit_length() - 1):
        below = (row >> bit == (column >> bit) + 1) & (row >> (bit + 1) == column >> (bit + 1))
        step = _product(jnp.where(below, lower, 0.0), inverse)
        inverse = inverse - _product(inverse, step)
    return inverse


def _scores(left: tuple[Array, Array], k: Array, total: Array) -> list[Array]:
    """Decayed x_t . k_s of all t and s <= t for each x, [CHUNK, CHUNK]; finite for other s.

    Args:
      left: two arrays x [CHUNK, K].
      total: G, [CHUNK, K].
    """
    parts = []
    for first in range(0, CHUNK, _TILE):
        middle = total[first + _TILE // 2 - 1 : first + _TILE // 2]
        own = slice(first, first + _TILE)
        near = jnp.exp(total[own] - middle)
        far = jnp.exp(jnp.minimum(middle - total, _FARTHEST)) * k
        rows = jnp.concatenate([x[own] * near for x in left], 0)
        parts.append(_product(rows, far, _RIGHT_TURNED))
    return [
        jnp.concatenate([p[i * _TILE : (i + 1) * _TILE] for p in parts], 0)
        for i in range(len(left))
    ]


def _head(rows: Rows, memory: Array) -> tuple[Array, Array]:
    """A chunk of one head: outputs [CHUNK, V], and the memory [V, K] behind it."""
    q, k, v, g, beta = rows
    row, column = _place()
    total = _product(jnp.where(row >= column, 1.0, 0.0), g)
    last = total[CHUNK - 1 :]
    before, within = _scores((k, q), k, total)
    inverse = unit_lower_inverse(jnp.where(row > column, before * beta, 0.0))
    within = jnp.where(row >= column, within, 0.0)
    from_start = jnp.exp(total)
    both = _product(inverse, jnp.concatenate([v * beta, k * from_start * beta], 1))
    written, read = both[:, : v.shape[1]], both[:, v.shape[1] :]
    seen = _product(jnp.concatenate([read, q * from_start], 0), memory, _RIGHT_TURNED)
    update = written - seen[:CHUNK]
    out = seen[CHUNK:] + _product(within, update)
    to_end = k * jnp.exp(last - total)
    return out, memory * jnp.exp(last) + _product(update, to_end, _LEFT_TURNED)


def _kernel(*refs: Ref) -> None:
    """A chunk of all heads."""
    q, k, v, g, beta, before, out, after, memory = refs
    step, (heads, _, width) = pl.program_id(0), memory.shape

    @pl.when(step == 0)
    def begin() -> None:
        memory[...] = before[...]

    for head in range(heads):
        lanes = slice(head * width, (head + 1) * width)
        own = q[:, lanes], k[:, lanes], v[:, lanes], g[:, lanes]
        found, new = _head(Rows(*own, beta[:, head : head + 1]), memory[head])
        out[:, lanes] = found
        memory[head] = new

    @pl.when(step == pl.num_programs(0) - 1)
    def end() -> None:
        after[...] = memory[...]


def chunked(rows: Rows, memory: Array, interpret: bool) -> tuple[Array, Array]:
    """The delta rule.

    Args:
      memory: float32 [H, V, K], before the first token; V = K.
      interpret: True without a TPU.

    Returns: outputs float32 [T, H V]; the memory behind the last token.
    Numerics: float32, products of float32.
    """
    tokens = rows.q.shape[0]
    along = [pl.BlockSpec((CHUNK, x.shape[1]), lambda i: (i, 0)) for x in rows]
    whole = pl.BlockSpec(memory.shape, lambda i: (0, 0, 0))
    call = pl.pallas_call(
        _kernel,
        name="prefill_delta",
        grid=(tokens // CHUNK,),
        in_specs=[*along, whole],
        out_specs=[along[2], whole],
        out_shape=[
            jax.ShapeDtypeStruct(rows.v.shape, F32), jax.ShapeDtypeStruct(memory.shape, F32)
        ],
        scratch_shapes=[pltpu.VMEM(memory.shape, F32)],
        interpret=interpret,
    )  # fmt: skip
    out, after = call(*rows, memory)
    return out, after
