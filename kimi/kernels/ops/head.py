"""Greedy choice over a vocabulary that is seen tile by tile, and rank by rank. Ties: lower id.

NaN never wins: a row of NaN alone ends with the value minus infinity, which the caller can tell.

Oracle: jnp.argmax.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from kimi.kernels.chip import LANES
from kimi.kernels.ops.lanes import F32, I32, iota, pad_lanes, replicate


class Best(NamedTuple):
    """Largest logit so far on each of 128 lanes.

    Attributes:
      value: [R, 128] float32.
      ids: [R, 128] int32, vocabulary id of `value`; 0 where nothing was above minus infinity.
    """

    value: Array
    ids: Array


def start(rows: int) -> Best:
    """Nothing seen."""
    shape = (rows, LANES)
    return Best(jnp.full(shape, -jnp.inf, F32), jnp.zeros(shape, I32))


def update(best: Best, logits: Array, first: Array | int, stop: Array | int) -> Best:
    """Adds a tile of logits; tiles must come in ascending order of ids.

    Args:
      best: of the tiles before.
      logits: [R, N] float32.
      first: [] int32, id of column 0.
      stop: [] int32, ids from here on are padding and never win.

    Returns: `Best`. Exact: a strict comparison keeps the first of equals on every lane.
    """
    value, ids = best
    logits = pad_lanes(logits, LANES, -jnp.inf)
    for lane in range(0, logits.shape[1], LANES):
        here = iota(ids.shape, 1) + (first + lane)
        panel = logits[:, lane : lane + LANES]
        wins = (panel > value) & (here < stop)
        value, ids = jnp.where(wins, panel, value), jnp.where(wins, here, ids)
    return Best(value, ids)


def pick(value: Array, ids: Array) -> Best:
    """The best of all lanes: of one rank's `Best`, or of candidates gathered from all ranks.

    Args:
      value: [R, L] float32, no NaN.
      ids: [R, L] int32, each below 2^24.

    Returns: `Best`, lane-replicated; the lowest id of those with the largest value.
    """
    highest = jnp.max(value, -1, keepdims=True)
    # Ids are compared as float32, which is exact below 2^24 and one cross-lane pass, not two.
    lowest = jnp.min(jnp.where(value == highest, ids.astype(F32), jnp.inf), -1, keepdims=True)
    return Best(replicate(highest), replicate(lowest).astype(I32))
