"""Which drafted tokens stay, and what follows them.

A block has R rows: the anchor and R - 1 drafted tokens. Row j's logits are for the position after
it, where the draft (if any) put `drafted[j]`. R = 1 is plain decoding.
"""

import jax.numpy as jnp
from jax import Array

from kimi.decoding.drawing import SampledRows


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


def accept_sampled(uniform: Array, rows: SampledRows, valid: Array | int) -> tuple[Array, Array]:
    """Speculative sampling for a deterministic draft; the output is distributed exactly as p.

    A drafted token is kept with the target's own probability p of it. The first one that is not is
    replaced by a draw from p without it; if all are kept, one more is drawn from the last row. So
    the draft d is emitted with probability p(d), another token x with
    (1 - p(d)) p(x) / (1 - p(d)) = p(x).

    Args:
      uniform: [R - 1] float32, uniform in [0, 1), independent of the draws.
      rows: of R rows.
      valid: [] int32, rows that were verified, 1 to R; what follows them is ignored.

    Returns: accepted drafts [] int32 in 0 .. valid - 1; the token after them [] int32.
    """
    accepted = _accepted(uniform < rows.chance[:-1], valid)
    rejects = accepted < valid - 1
    return accepted, jnp.where(rejects, rows.redrawn[accepted], rows.drawn[accepted])
