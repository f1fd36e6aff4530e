"""Exact top-k routing: the experts that lax.top_k (stable) picks, ties to the lower id.

Choices are made on full float32 scores: nothing is packed into fewer bits, so near-ties resolve as
in the reference. The correction bias takes part in the choice only; weights are the unbiased scores
of the chosen over their sum.

  `list_row`: one row, and the list of experts that a rank runs for it. The rank of every expert is
    a count of those before it.
  `route_rows`: eight rows. A sorting network over values finds each row's k-th largest score;
    experts above it are in, and of those equal to it the first ones, by a triangular matmul.
  `union`: their list: the experts that any row needs, once each, with every row's weight.

Scores must be finite; if the model has produced NaN, ids stay in range and counts within bounds.

Oracle: reference.moe.Router.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.ops.lanes import (
    BF16,
    F32,
    dot,
    dot_nt,
    fence,
    iota,
    pad_lanes,
    replicate,
    split3,
    spread,
)
from kimi.kernels.routing import ListRow

SUM_EPS = 1e-20  # added to the sum of the chosen scores


class Selection(NamedTuple):
    """Routes of eight rows.

    Attributes:
      chosen: [8, E] float32, 1 or 0; k ones a row.
      weights: [8, E] float32, 0 where not chosen.
    """

    chosen: Array
    weights: Array


def list_row(
    biased: Array, scores: Array, owned: Array, k: int, scaling: float, slots: int
) -> Array:
    """The list of this rank's experts that one row chose, in descending order of score.

    Args:
      biased: [1, E] float32, score plus correction bias. NaN is never chosen.
      scores: [1, E] float32, unbiased.
      owned: [1, E] bool, the experts that the rank holds.
      k: experts per token, at most 128.
      scaling: `routed_scaling_factor`.
      slots: list capacity, at least k.

    Returns: float32 [16, slots], see `ListRow`.
    Numerics: choices exact; weights float32.
    """
    rank = _ranks(pad_lanes(jnp.where(biased == biased, biased, -jnp.inf), LANES, -jnp.inf))
    width = rank.shape[1]
    hit = jnp.broadcast_to(rank, (k, width)) == iota((k, width), 0).astype(F32)

    def of_chosen(row: Array) -> Array:
        padded = jnp.broadcast_to(pad_lanes(row, LANES, 0.0), (k, width))
        return replicate(jnp.sum(jnp.where(hit, padded, 0.0), -1, keepdims=True))

    ids, score = of_chosen(iota(biased.shape, 1).astype(F32)), of_chosen(scores)
    mine = of_chosen(jnp.where(owned & (biased == biased), 1.0, 0.0))
    weights = score * (scaling / (jnp.sum(score, 0, keepdims=True) + SUM_EPS))
    place, lane = iota(mine.shape, 0), iota(mine.shape, 1)
    on_lanes = jnp.sum(jnp.where(place == lane, mine, 0.0), 0, keepdims=True)
    before = replicate(jnp.sum(jnp.where(lane < place, on_lanes, 0.0), -1, keepdims=True))
    here = (spread(before, slots) == iota((k, slots), 1).astype(F32)) & (spread(mine, slots) > 0.0)

    def listed(column: Array) -> Array:
        return jnp.sum(jnp.where(here, spread(column, slots), 0.0), 0, keepdims=True)

    count = spread(jnp.sum(mine, 0, keepdims=True), slots)
    others = jnp.zeros((SUBLANES - 1, slots), F32)
    bits = listed(jnp.ones_like(mine))
    empty = jnp.zeros((ListRow.SIZE - SUBLANES - 4, slots), F32)
    return jnp.concatenate([listed(weights), others, listed(ids), bits, count, count, empty], 0)


def route_rows(biased: Array, scores: Array, k: int, scaling: float) -> Selection:
    """Routes eight rows.

    Args:
      biased: [8, E] float32, score plus correction bias, finite in valid rows.
      scores: [8, E] float32, unbiased.
      k: experts per token.
      scaling: `routed_scaling_factor`.

    Returns: `Selection`.
    Numerics: choices exact; weights float32.
    """
    threshold = _kth_largest(biased, k)
    above = jnp.where(biased > threshold, 1.0, 0.0)
    equal = jnp.where(biased == threshold, 1.0, 0.0)
    room = k - jnp.sum(above, -1, keepdims=True)
    earlier, _ = _prefix(equal)
    chosen = above + jnp.where((equal > 0.0) & (earlier < room), 1.0, 0.0)
    weights = jnp.where(chosen > 0.0, scores, 0.0)
    total = jnp.sum(weights, -1, keepdims=True) + SUM_EPS
    return Selection(chosen, weights * (scaling / total))


def union(selection: Selection, rows: Array | int, owned: Array, slots: int) -> Array:
    """The list of this rank's experts that any valid row chose, in ascending order of ids.

    Args:
      selection: of eight rows.
      rows: [] int32 in 0..8, valid rows; later ones ask for nothing.
      owned: [8, E] bool, the same in every row: the experts that the rank holds.
      slots: list capacity, a multiple of 16: at least the smaller of 8 k and the experts it holds.

    Returns: float32 [16, slots], see `ListRow`.
    Numerics: ids and weights exact, gathered by a one-hot matmul of three-part bfloat16 weights.
    """
    width = selection.chosen.shape[1]
    expert, row = iota((SUBLANES, width), 1), iota((SUBLANES, width), 0)
    here = owned & (row < rows)
    chosen = jnp.where(here, selection.chosen, 0.0)
    weights = jnp.where(here, selection.weights, 0.0)
    taken = jnp.sum(chosen, 0, keepdims=True)  # rows that need an expert
    needed = jnp.broadcast_to(jnp.where(taken > 0.0, 1.0, 0.0), (SUBLANES, width))
    slot, count = _prefix(needed)
    pairs = jnp.sum(jnp.floor((taken + 1.0) * 0.5), -1, keepdims=True)
    slot = jnp.where(needed > 0.0, slot, -1.0)[:1]
    hot = jnp.where(
        jnp.broadcast_to(slot, (slots, width)) == iota((slots, width), 0).astype(F32), 1.0, 0.0
    ).astype(BF16)
    # Ids as two digits below 256, which bfloat16 holds exactly, as it does a byte of bits.
    bits = jnp.sum(chosen * (1 << row).astype(F32), 0, keepdims=True)
    bits = jnp.broadcast_to(bits, (SUBLANES, width))
    digits = [(expert >> 7).astype(F32), (expert & 127).astype(F32)]
    table = jnp.concatenate([*split3(weights), *digits, bits], 0)
    found = dot_nt(table.astype(BF16), hot)  # [48, slots]
    high, middle, low, upper, lower, chose = (
        found[i : i + SUBLANES] for i in range(0, found.shape[0], SUBLANES)
    )
    ids = upper[:1] * float(LANES) + lower[:1]
    counts = [jnp.broadcast_to(n[:1, :1], (1, slots)) for n in (count, pairs)]
    empty = jnp.zeros((ListRow.SIZE - SUBLANES - 4, slots), F32)
    return jnp.concatenate([high + middle + low, ids, chose[:1], *counts, empty], 0)


def _ranks(row: Array) -> Array:
    """[1, E] -> [1, E] float32, how many experts go before each; E a multiple of 128."""
    width = row.shape[1]
    column = jnp.broadcast_to(row, (LANES, width)).T  # [E, 128], expert j on sublane j
    lane, sublane = iota((SUBLANES, LANES), 1), iota((SUBLANES, LANES), 0)
    ranks = []
    for base in range(0, width, LANES):
        mine = jnp.broadcast_to(row[:, base : base + LANES], (SUBLANES, LANES))
        count = jnp.zeros((SUBLANES, LANES), F32)
        for first in range(0, width, SUBLANES):
            other = column[first : first + SUBLANES]
            if first + SUBLANES <= base:  # all of these have lower ids: they win ties
                before = other >= mine
            elif first >= base + LANES:
                before = other > mine
            else:
                lower = sublane + (first - base) < lane
                before = (other > mine) | ((other == mine) & lower)
            count = count + jnp.where(before, 1.0, 0.0)
        ranks.append(jnp.sum(count, 0, keepdims=True))
    return jnp.concatenate(ranks, 1)


def _kth_largest(x: Array, k: int) -> Array:
    """[8, E] -> [8, 1], each row's k-th largest value, duplicates counted."""
    length = 1 << (k - 1).bit_length()  # of the sorted lists
    padded = pad_lanes(x, max(LANES, SUBLANES * length), -jnp.inf)
    panels = []
    for base in range(0, padded.shape[1], LANES):
        panel = padded[:, base : base + LANES]
        rest = jnp.zeros((LANES - SUBLANES, LANES), F32)
        panels.append(jnp.concatenate([panel, rest], 0).T)  # experts on sublanes, rows on lanes
    tall = jnp.concatenate(panels, 0)
    tiles = [tall[i : i + SUBLANES] for i in range(0, tall.shape[0], SUBLANES)]
    # On every (sublane, lane) a list of E / 8 values: sort groups, merge them keeping the largest.
    best = _sorted(tiles[:length])
    for i in range(length, len(tiles), length):
        best = _cleaned(_larger_half(best, _sorted(tiles[i : i + length])))
    distance = SUBLANES // 2
    while distance:  # across sublanes
        best = _larger_half(best, [pltpu.roll(v, distance, 0) for v in best])
        if distance > 1 or k < length:
            best = _cleaned(best)
        distance //= 2
    if k < length:
        kth = best[k - 1]
    else:
        kth = best[0]
        for v in best[1:]:
            kth = jnp.minimum(kth, v)
    # Rows lie on lanes: the diagonal turns them back onto sublanes.
    diagonal = iota((SUBLANES, LANES), 0) == iota((SUBLANES, LANES), 1)
    return jnp.sum(jnp.where(diagonal, kth, 0.0), -1, keepdims=True)


def _exchange(a: list[Array], i: int, j: int) -> None:
    """Puts the larger of the two at i."""
    a[i], a[j] = jnp.maximum(a[i], a[j]), jnp.minimum(a[i], a[j])


def _sorted(tiles: list[Array]) -> list[Array]:
    """Descending, by Batcher's odd-even merge sort; a power of two of tiles."""
    a, n, p = list(tiles), len(tiles), 1
    while p < n:
        k = p
        while k:
            for j in range(k % p, n - k, 2 * k):
                for i in range(j, min(j + k, n - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        _exchange(a, i, i + k)
            a = fence(a)
            k //= 2
        p *= 2
    return a


def _larger_half(a: list[Array], b: list[Array]) -> list[Array]:
    """The larger half of two descending lists, as a bitonic list."""
    return [jnp.maximum(x, y) for x, y in zip(a, reversed(b), strict=True)]


def _cleaned(a: list[Array]) -> list[Array]:
    """A bitonic list in descending order."""
    a, distance = list(a), len(a) // 2
    while distance:
        for i in range(len(a)):
            if not i & distance:
                _exchange(a, i, i + distance)
        a = fence(a)
        distance //= 2
    return a


def _prefix(mask: Array) -> tuple[Array, Array]:
    """[8, E] of 0 and 1 -> how many ones lie before each expert, [8, E]; all ones, [8, 128].

    Exact: counts below 256 a panel in bfloat16 operands, float32 sums.
    """
    width = mask.shape[1]
    padded = pad_lanes(mask, LANES, 0.0)
    panels = [padded[:, i : i + LANES] for i in range(0, padded.shape[1], LANES)]
    stacked = jnp.concatenate(panels, 0).astype(BF16)
    square = (LANES, LANES)
    before = jnp.where(iota(square, 0) < iota(square, 1), 1.0, 0.0).astype(BF16)
    inside = dot(stacked, before)
    sums = dot(stacked, jnp.ones(square, BF16))
    running, out = jnp.zeros((SUBLANES, LANES), F32), []
    for i in range(0, inside.shape[0], SUBLANES):
        out.append(inside[i : i + SUBLANES] + running)
        running = running + sums[i : i + SUBLANES]
    return jnp.concatenate(out, 1)[:, :width], running
