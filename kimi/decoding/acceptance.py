"""Which drafted tokens stay, and what follows them.

A block has R rows: the anchor and R - 1 drafted tokens. Row j's logits are for the position after
it, where the draft (if any) put `drafted[j]`. R = 1 is plain decoding.
"""

import jax
import jax.numpy as jnp
from jax import Array


def accept_greedy(best: Array, drafted: Array, valid: Array | int) -> tuple[Array, Array]:
    """Keeps the longest prefix of the draft that greedy decoding would have produced.

    Args:
      best: [R] int32, the target's greedy choice after each row.
      drafted: [R - 1] int32.
      valid: [] int32, rows that were verified, 1 to R; what follows them is ignored.

    Returns: accepted drafts [] int32 in 0 .. valid - 1; the token after them [] int32.
    """
    accepted = _accepted(best[:-1] == drafted, valid)
    return accepted, best[accepted]


def _accepted(kept: Array, valid: Array | int) -> Array:
    """How many of the first drafts are kept, of the valid - 1 that were verified."""
    verified = jnp.arange(kept.shape[0]) < valid - 1
    return jnp.cumprod(kept & verified).sum().astype(jnp.int32)


def accept_sampled(key: Array, p: Array, drafted: Array, valid: Array | int) -> tuple[Array, Array]:
    """Speculative sampling for a deterministic draft; the output is distributed exactly as p.

    A drafted token is kept with the target's own probability of it. The first one that is not is
    replaced by a draw from p without it; if all are kept, one more is drawn from the last row. So
    the draft d is emitted with probability p(d), another token x with
    (1 - p(d)) p(x) / (1 - p(d)) = p(x).

    Args:
      key: PRNG key, used up.
      p: [R, V] float32, the distributions to be matched (see `sampling.distribution`).
      drafted: [R - 1] int32.
      valid: [] int32, rows that were verified, 1 to R; what follows them is ignored.

    Returns: accepted drafts [] int32 in 0 .. valid - 1; the token after them [] int32.
    """
    accept_key, draw_key = jax.random.split(key)
    rows = p.shape[0]
    chance = jnp.take_along_axis(p[:-1], drafted[:, None], -1)[:, 0]
    accepted = _accepted(jax.random.uniform(accept_key, (rows - 1,)) < chance, valid)
    rest = p[accepted]
    if rows > 1:
        refused = drafted[jnp.minimum(accepted, rows - 2)]
        without = rest.at[refused].set(0)
        rest = jnp.where(accepted < valid - 1, without, rest)
    return accepted, jax.random.categorical(draw_key, jnp.log(rest)).astype(jnp.int32)
