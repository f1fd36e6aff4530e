"""Which drafted tokens stay, and what follows them.

A block has R rows: the anchor and R - 1 drafted tokens. Row j's logits are for the position after
it, where the draft (if any) put `drafted[j]`. R = 1 is plain decoding.
"""

import jax
import jax.numpy as jnp
from jax import Array


def accept_greedy(logits: Array, drafted: Array) -> tuple[Array, Array]:
    """Keeps the longest prefix of the draft that greedy decoding would have produced.

    Args:
      logits: [R, V] float32, the target's.
      drafted: [R - 1] int32.

    Returns: accepted drafts [] int32 in 0..R-1; the token after them [] int32.
    """
    best = jnp.argmax(logits, -1).astype(jnp.int32)
    accepted = jnp.cumprod(best[:-1] == drafted).sum().astype(jnp.int32)
    return accepted, best[accepted]


def accept_sampled(key: Array, p: Array, drafted: Array) -> tuple[Array, Array]:
    """Speculative sampling for a deterministic draft; the output is distributed exactly as p.

    A drafted token is kept with the target's own probability of it. The first one that is not is
    replaced by a draw from p without it; if all are kept, one more is drawn from the last row. So
    the draft d is emitted with probability p(d), another token x with
    (1 - p(d)) p(x) / (1 - p(d)) = p(x).

    Args:
      key: PRNG key, used up.
      p: [R, V] float32, the distributions to be matched (see `sampling.distribution`).
      drafted: [R - 1] int32.

    Returns: accepted drafts [] int32 in 0..R-1; the token after them [] int32.
    """
    accept_key, draw_key = jax.random.split(key)
    rows = p.shape[0]
    chance = jnp.take_along_axis(p[:-1], drafted[:, None], -1)[:, 0]
    kept = jax.random.uniform(accept_key, (rows - 1,)) < chance
    accepted = jnp.cumprod(kept).sum().astype(jnp.int32)
    rest = p[accepted]
    if rows > 1:
        refused = drafted[jnp.minimum(accepted, rows - 2)]
        without = rest.at[refused].set(0)
        rest = jnp.where(accepted < rows - 1, without, rest)
    return accepted, jax.random.categorical(draw_key, jnp.log(rest)).astype(jnp.int32)
