"""The gated delta rule for many tokens, in chunks of the WY form; stable over all log decays.

Per head, with state S [V, K] (held transposed as in `kernels.ops.kda`):

    S <- S diag(e^g);  S <- S + beta (v - S k) k^T;  o = S q

One Pallas kernel goes over the sequence; the recurrent states of all heads stay in VMEM. A chunk
is a chain of eighteen products that wait for each other, all but the last three without the state.
So chains stand side by side, those of the heads and of two chunks: a product of each, then the
next product of each. The compiler keeps this order; one chain after the other takes 2.8 times as
long.

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

CHUNK = 64
SIDE_BY_SIDE = 2  # chunks of a step of the loop over the sequence
_TILE = 16  # tokens with a common middle
_FARTHEST = 40.0  # nats from it: half a tile of decays of -5


class Rows(NamedTuple):
    """T tokens of H heads, float32; T a multiple of `CHUNK * SIDE_BY_SIDE`. A token with beta = 0
    and g = 0 leaves the state as it is, whatever its finite q, k and v are.

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


class _Part(NamedTuple):
    """What a chunk of one head does to any state.

    Attributes:
      written: [CHUNK, V], values before what the state holds is taken off.
      reads: [2 CHUNK, K], what is looked up: keys, then queries.
      within: [CHUNK, CHUNK], what outputs take of the chunk's own updates.
      to_end: [CHUNK, K], keys decayed to the end of the chunk.
      decay: [1, K], of the whole chunk.
    """

    written: Array
    reads: Array
    within: Array
    to_end: Array
    decay: Array


def unit_lower_inverses(lowers: list[Array]) -> list[Array]:
    """(I + L)^-1 of strictly lower triangular L [CHUNK, CHUNK].

    By doubling: as stable as forward substitution, see `reference.kda`.
    """
    row, column = _place()
    inverses = [jnp.where(row == column, 1.0, 0.0) for _ in lowers]
    for bit in range(CHUNK.bit_length() - 1):
        below = (row >> bit == (column >> bit) + 1) & (row >> (bit + 1) == column >> (bit + 1))
        belows = [jnp.where(below, lower, 0.0) for lower in lowers]
        steps = [_product(a, b) for a, b in zip(belows, inverses, strict=True)]
        steps = [_product(a, b) for a, b in zip(inverses, steps, strict=True)]
        inverses = [a - b for a, b in zip(inverses, steps, strict=True)]
    return inverses


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


def _parts(all_rows: list[Rows]) -> list[_Part]:
    """Of chunks of single heads, side by side."""
    row, column = _place()
    totals = [_product(jnp.where(row >= column, 1.0, 0.0), rows.g) for rows in all_rows]
    scores = [
        _scores((rows.k, rows.q), rows.k, total)
        for rows, total in zip(all_rows, totals, strict=True)
    ]
    inverses = unit_lower_inverses([
        jnp.where(row > column, before * rows.beta, 0.0)
        for rows, (before, _) in zip(all_rows, scores, strict=True)
    ])  # fmt: skip
    decays = [jnp.exp(total) for total in totals]
    solved = [
        _product(inverse, jnp.concatenate([rows.v, rows.k * decay], 1) * rows.beta)
        for rows, inverse, decay in zip(all_rows, inverses, decays, strict=True)
    ]
    return [
        _Part(
            both[:, : rows.v.shape[1]],
            jnp.concatenate([both[:, rows.v.shape[1] :], rows.q * decay], 0),
            jnp.where(row >= column, within, 0.0),
            rows.k * jnp.exp(total[CHUNK - 1 :] - total),
            decay[CHUNK - 1 :],
        )
        for rows, total, decay, (_, within), both in zip(
            all_rows, totals, decays, scores, solved, strict=True
        )
    ]


def _follow(parts: list[_Part], recurrent_states: list[Array]) -> tuple[list[Array], list[Array]]:
    """A chunk of all heads: outputs [CHUNK, V], and the recurrent states [V, K] behind it."""
    both = list(zip(parts, recurrent_states, strict=True))
    seen = [_product(part.reads, recurrent_state, _RIGHT_TURNED) for part, recurrent_state in both]
    updates = [part.written - s[:CHUNK] for part, s in zip(parts, seen, strict=True)]
    inside = [_product(part.within, u) for part, u in zip(parts, updates, strict=True)]
    added = [_product(u, part.to_end, _LEFT_TURNED) for part, u in zip(parts, updates, strict=True)]
    outputs = [s[CHUNK:] + i for s, i in zip(seen, inside, strict=True)]
    return outputs, [m * part.decay + a for (part, m), a in zip(both, added, strict=True)]


def _kernel(*refs: Ref) -> None:
    """`SIDE_BY_SIDE` chunks of all heads."""
    *inputs, before, out, after, recurrent_state = refs
    step, (heads, _, width) = pl.program_id(0), recurrent_state.shape

    @pl.when(step == 0)
    def begin() -> None:
        recurrent_state[...] = before[...]

    def rows(chunk: int, head: int) -> Rows:
        tokens = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        lanes = slice(head * width, (head + 1) * width)
        q, k, v, g, beta = inputs
        own = (x[tokens, lanes] for x in (q, k, v, g))
        return Rows._make((*own, beta[tokens, head : head + 1]))

    order = [(chunk, head) for chunk in range(SIDE_BY_SIDE) for head in range(heads)]
    parts = _parts([rows(*place) for place in order])
    recurrent_states = [recurrent_state[head] for head in range(heads)]
    for chunk in range(SIDE_BY_SIDE):
        own = parts[chunk * heads : (chunk + 1) * heads]
        outputs, recurrent_states = _follow(own, recurrent_states)
        out[chunk * CHUNK : (chunk + 1) * CHUNK, :] = jnp.concatenate(outputs, 1)
    for head in range(heads):
        recurrent_state[head] = recurrent_states[head]

    @pl.when(step == pl.num_programs(0) - 1)
    def end() -> None:
        after[...] = recurrent_state[...]


def chunked(rows: Rows, recurrent_state: Array, interpret: bool) -> tuple[Array, Array]:
    """The delta rule.

    Args:
      recurrent_state: float32 [H, V, K], before the first token; V = K.
      interpret: True without a TPU.

    Returns: outputs float32 [T, H V]; the state behind the last token.
    Numerics: float32, products of float32.
    """
    tokens, step = rows.q.shape[0], SIDE_BY_SIDE * CHUNK
    along = [pl.BlockSpec((step, x.shape[1]), lambda i: (i, 0)) for x in rows]
    whole = pl.BlockSpec(recurrent_state.shape, lambda i: (0, 0, 0))
    call = pl.pallas_call(
        _kernel,
        name="prefill_delta",
        grid=(tokens // step,),
        in_specs=[*along, whole],
        out_specs=[along[2], whole],
        out_shape=[jax.ShapeDtypeStruct(x.shape, F32) for x in (rows.v, recurrent_state)],
        scratch_shapes=[pltpu.VMEM(recurrent_state.shape, F32)],
        interpret=interpret,
    )
    out, after = call(*rows, recurrent_state)
    return out, after
