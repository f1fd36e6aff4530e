"""Absorbed latent attention over tiles of a transposed cache, with a running softmax.

The cache of a layer holds a token per lane: latent^T [W, S] bfloat16 as words [W / 2, S], W = rank
+ shared key part. In this form both products stream the tile as the matrix unit wants it. Query
rows are (row, head) pairs in any order, padded to a multiple of 16: q [M, W] bfloat16, already
multiplied by W_UK.

    partial = start(M, rank)
    for tiles: partial = accumulate(partial, [scores(q, tile, scale), ...], [tile, ...], ...)
    mixed = finish(partial)                     # [M, rank], to be multiplied by W_UV

`scores` and `accumulate` are apart so that the next tile's scores can run beside this one's values.

Oracle: reference.mla.Mla._attend.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES
from kimi.kernels.ops.lanes import (
    BF16,
    F32,
    I32,
    U32,
    dot,
    dot_nt,
    iota,
    pad_lanes,
    replicate,
    spread,
)

# Finite: rows that have seen nothing yet subtract it from minus infinity without a NaN.
LOWEST = -1e30


class Partial(NamedTuple):
    """Softmax over the positions seen so far.

    Attributes:
      maximum: [M, 128] float32, largest score, lane-replicated.
      total: [M, 128] float32; the sum over lanes is the sum of exp(score - maximum).
      mixed: [M, rank] float32, sum of exp(score - maximum) latent.
    """

    maximum: Array
    total: Array
    mixed: Array


def start(rows: int, rank: int) -> Partial:
    """No positions seen."""
    return Partial(
        jnp.full((rows, LANES), LOWEST, F32),
        jnp.zeros((rows, LANES), F32),
        jnp.zeros((rows, rank), F32),
    )


def valid_words(words: Array, first: Array | int, length: Array | int) -> Array:
    """Clears dead positions of a cache tile; needed only for the tile with the last position.

    Args:
      words: [W / 2, P] uint32; positions from `length` on may hold anything.
      first: [] int32, position of lane 0.
      length: [] int32, valid positions of the cache, this step's rows included.

    Returns: [W / 2, P] uint32. Masked scores alone would not do: 0 * NaN is NaN.
    """
    return jnp.where(iota(words.shape, 1) + first < length, words, jnp.zeros_like(words))


def insert_rows(
    words: Array, new: Array, position: Array | int, valid: Array | int | None = None
) -> Array:
    """Writes new tokens into a cache tile.

    Args:
      words: [W / 2, 128] uint32.
      new: [R, W] float32, R <= 128 consecutive tokens, W a multiple of 16.
      position: [] int32 in -R..128, lane of new[0]; tokens that fall outside the tile are left out,
        so a block that straddles two tiles is inserted into both, at p and p - 128.
      valid: [] int32, how many of the tokens count, the first ones; default R. The others may hold
        anything and leave no trace.

    Returns: [W / 2, 128] uint32; other positions unchanged.
    Numerics: rounded to bfloat16.
    """
    count, width = new.shape
    tall = jnp.concatenate([new, jnp.zeros((LANES - count, width), F32)], 0)
    turned = pltpu.roll(pad_lanes(tall, LANES, 0.0).T[:width], jnp.asarray(position, I32) & 127, 1)
    lane = iota(words.shape, 1)
    inside = (lane >= position) & (lane < position + (count if valid is None else valid))
    return jnp.where(inside, pltpu.bitcast(turned.astype(BF16), U32), words)


def scores(q: Array, tile: Array, scale: float) -> Array:
    """q [M, W] bfloat16 against a cache tile [W / 2, P] of words -> [M, P] float32.

    Numerics: bfloat16 operands, float32 sums. Dead positions give anything, NaN included.
    """
    return dot(q, pltpu.bitcast(tile, BF16)) * scale


def accumulate(
    partial: Partial,
    tile_scores: Sequence[Array],
    tiles: Sequence[Array],
    first: Array | int,
    lengths: Array,
) -> Partial:
    """Adds consecutive tiles that share one maximum.

    Args:
      partial: of the positions before.
      tile_scores: per tile `scores`, [M, P] float32, P a multiple of 128.
      tiles: [W / 2, P] uint32 each; dead positions finite (see `valid_words`).
      first: [] int32, position of lane 0 of the first tile.
      lengths: [M, 128] int32, lane-replicated: positions that each query row sees, 0 included.

    Returns: `Partial`.
    Numerics: probabilities are rounded to bfloat16 as matmul operands, their total is not; all sums
      float32.
    """
    rank, width = partial.mixed.shape[1], tile_scores[0].shape[1]
    panels = []
    for index, score in enumerate(tile_scores):
        for lane in range(0, width, LANES):
            position = iota(lengths.shape, 1) + (first + index * width + lane)
            panels.append(jnp.where(position < lengths, score[:, lane : lane + LANES], -jnp.inf))
    highest = panels[0]
    for panel in panels[1:]:
        highest = jnp.maximum(highest, panel)
    maximum = jnp.maximum(partial.maximum, replicate(jnp.max(highest, -1, keepdims=True)))
    shrink = jnp.exp(partial.maximum - maximum)
    weights = [jnp.exp(panel - maximum) for panel in panels]
    total = partial.total * shrink
    for weight in weights:
        total = total + weight
    mixed = partial.mixed * spread(shrink, rank)
    per_tile = width // LANES
    for index, tile in enumerate(tiles):
        part = jnp.concatenate(weights[index * per_tile : (index + 1) * per_tile], -1)
        mixed = mixed + dot_nt(part.astype(BF16), pltpu.bitcast(tile[: rank // 2], BF16))
    return Partial(maximum, total, mixed)


def finish(partial: Partial) -> Array:
    """Softmax-weighted latents [M, rank] float32; rows that saw no position are zero."""
    total = replicate(jnp.sum(partial.total, -1, keepdims=True))
    inverse = jnp.where(total > 0.0, 1.0 / total, 0.0)
    return partial.mixed * spread(inverse, partial.mixed.shape[1])
