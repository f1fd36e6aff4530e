"""The gated delta rule for many tokens, in chunks of the WY form; stable over all log decays.

Per head, with memory S [V, K] (held transposed as in `kernels.ops.kda`):

    S <- S diag(e^g);  S <- S + beta (v - S k) k^T;  o = S q

Within a chunk of 64 tokens decays are taken apart as e^(G_t - m) e^(m - G_s), G the sum of log
decays so far and m its value in the middle of t's 16 tokens. With log decays above -5 a token, t is
within 40 nats of m; s is within 40 of it or earlier, where its factor is below one and may vanish,
as the whole does. Later s are cut off before the exponential and masked behind it.

Oracle: reference.kda.recurrent.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from kimi.prefill.pairs import F32

CHUNK = 64  # tokens of a step of the loop over the sequence
_TILE = 16  # tokens with a common middle
_FARTHEST = 40.0  # nats from it: half a tile of decays of -5


class Rows(NamedTuple):
    """T tokens of H heads, float32; T a multiple of `CHUNK`. A token with beta = 0 and g = 0 leaves
    the memory as it is, whatever its finite q, k and v are.

    Attributes:
      q, k: [T, H, K] normalised, q scaled.
      v: [T, H, V].
      g: [T, H, K] log decay, -5 to 0.
      beta: [T, H].
    """

    q: Array
    k: Array
    v: Array
    g: Array
    beta: Array


def _product(spec: str, a: Array, b: Array) -> Array:
    return jnp.einsum(spec, a, b, precision="highest", preferred_element_type=F32)


def unit_lower_inverse(lower: Array) -> Array:
    """(I + L)^-1 for strictly lower triangular L [..., C, C], C a power of two.

    By doubling: as stable as forward substitution, see `reference.kda`.
    """
    size = lower.shape[-1]
    row, col = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
    inverse = jnp.broadcast_to(jnp.eye(size, dtype=F32), lower.shape)
    block = 1
    while block < size:
        below = (row // block == col // block + 1) & (row // (2 * block) == col // (2 * block))
        step = _product("...ij,...jk->...ik", jnp.where(below, lower, 0), inverse)
        inverse = inverse - _product("...ij,...jk->...ik", inverse, step)
        block *= 2
    return inverse


def _split(x: Array) -> Array:
    """[T, H, N] -> [T / CHUNK, H, CHUNK, N]."""
    tokens, heads, width = x.shape
    return x.reshape(tokens // CHUNK, CHUNK, heads, width).swapaxes(1, 2)


def chunked(rows: Rows, memory: Array) -> tuple[Array, Array]:
    """The delta rule.

    Args:
      memory: float32 [H, V, K], before the first token.

    Returns: outputs float32 [T, H, V]; the memory behind the last token.
    Numerics: float32, products of float32.
    """
    q, k, v, g, beta = (_split(x) for x in (*rows[:4], rows.beta[..., None]))
    total = jnp.cumsum(g, -2)
    last = total[..., -1:, :]
    count, heads, _, width = k.shape
    tiles = (count, heads, CHUNK // _TILE, _TILE, width)
    middle = total.reshape(tiles)[..., _TILE // 2 - 1 : _TILE // 2, :]
    near = jnp.exp(total.reshape(tiles) - middle)
    far = jnp.exp(jnp.minimum(middle - total[:, :, None], _FARTHEST)) * k[:, :, None]

    def scores(x: Array) -> Array:  # decayed x_t . k_s, [n, H, CHUNK, CHUNK]
        found = _product("nhatk,nhask->nhats", x.reshape(tiles) * near, far)
        return found.reshape(count, heads, CHUNK, CHUNK)

    strict = jnp.tril(jnp.ones((CHUNK, CHUNK), bool), -1)
    inverse = unit_lower_inverse(jnp.where(strict, scores(k) * beta, 0))
    within = jnp.where(strict | jnp.eye(CHUNK, dtype=bool), scores(q), 0)
    from_start = jnp.exp(total)
    written = _product("nhts,nhsv->nhtv", inverse, v * beta)
    read = _product("nhts,nhsk->nhtk", inverse, k * from_start * beta)
    to_end = k * jnp.exp(last - total)

    def step(s: Array, c: tuple[Array, ...]) -> tuple[Array, Array]:
        written, read, q_start, within, to_end, decay = c
        update = written - _product("htk,hvk->htv", read, s)
        out = _product("htk,hvk->htv", q_start, s) + _product("hts,hsv->htv", within, update)
        return s * decay + _product("htv,htk->hvk", update, to_end), out

    chunks = (written, read, q * from_start, within, to_end, jnp.exp(last))
    memory, out = lax.scan(step, memory, chunks)
    return out.swapaxes(1, 2).reshape(count * CHUNK, heads, -1), memory
