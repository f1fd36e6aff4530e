"""Block attention residual with the RMSNorm that follows it.

A sublayer sees sum_i softmax_i(RMSNorm(v_i) . w) v_i over the block residuals, which are the frozen
streams of earlier blocks, and the running prefix. The residuals do not change within a block, so
`freeze` combines them off the critical path as an online softmax; `attn_res` adds the prefix, which
has just arrived, and takes the norm of the result from inner products that are known before the
result itself.

Streams come in two layouts, told apart by their rank:
  [R, D]: a row tile. Statistics [R, 128].
  [1, D / 128, 128]: one row folded over sublanes, an eighth of the registers. Statistics
    [1, 1, 128].
Weights are vectors [D / 128, 128] with either.

Source: K3 report, block attention residuals.
Oracle: reference.model.AttentionResidual, reference.numerics.rms_norm.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from kimi.kernels.chip import LANES
from kimi.kernels.ops.lanes import BF16, F32, row_total

# Finite, so that the weight of no residuals is exp(EMPTY - score) = 0 and not exp(inf - inf).
EMPTY = -1e30
CHAINS = 4  # independent sums: an addition can start before the one before it has ended


class Frozen(NamedTuple):
    """The residuals as one softmax partial; statistics are lane-replicated.

    Attributes:
      combined: the streams' layout, float32: sum_i exp(score_i - maximum) v_i.
      maximum: largest score, `EMPTY` if there are none.
      denominator: sum_i exp(score_i - maximum).
      square: |combined|^2.
    """

    combined: Array
    maximum: Array
    denominator: Array
    square: Array


def features(x: Array) -> int:
    """Values per row of a stream in either layout."""
    return x.shape[1] if x.ndim == 2 else x.shape[1] * x.shape[2]


def panels(x: Array) -> list[Array]:
    """Pieces that a lane-replicated statistic multiplies directly: [R, 128] each, or x if folded.

    Working panel by panel keeps few registers alive; whole row tiles would spill.
    Raises: ValueError if the last axis is no multiple of 128.
    """
    if x.shape[-1] % LANES:
        raise ValueError(
            f"attn_res: expected a last axis of whole {LANES} lanes, found {list(x.shape)}"
        )
    if x.ndim == 3:
        return [x]
    return [x[:, i : i + LANES] for i in range(0, x.shape[1], LANES)]


def vector_panels(vector: Array, x: Array) -> list[Array]:
    """A vector [D / 128, 128] in the pieces of `panels(x)`."""
    if x.ndim == 3:
        return [vector]
    return [vector[i : i + 1] for i in range(vector.shape[0])]


def total(pieces: Iterable[Array]) -> Array:
    """Per-row sum of a stream given in panels, lane-replicated."""
    sums: list[Array] = []
    for i, piece in enumerate(pieces):
        if i < CHAINS:
            sums.append(piece)
        else:
            sums[i % CHAINS] = sums[i % CHAINS] + piece
    return row_total(sum(sums[1:], sums[0]))


def inverse_rms(x: Array, eps: float) -> Array:
    """1 / sqrt(mean x^2 + eps) per row, lane-replicated; x is a float32 stream."""
    return lax.rsqrt(total(p * p for p in panels(x)) * (1.0 / features(x)) + eps)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """RMSNorm of a float32 stream -> bfloat16 of the same layout.

    Numerics: float32, rounded once at the end (the published code also rounds before the weight).
    """
    return normalise(x, inverse_rms(x, eps), weight)


def normalise(x: Array, inverse: Array, weight: Array) -> Array:
    """x times its `inverse_rms` times weight -> bfloat16; the norm when its statistic is known."""
    weights = vector_panels(weight, x)
    pieces = [(v * inverse * w).astype(BF16) for v, w in zip(panels(x), weights, strict=True)]
    return jnp.concatenate(pieces, -1)


def freeze(
    residuals: Sequence[Array], inverse: Sequence[Array], score_weight: Array, count: Array | int
) -> Frozen:
    """Combines the first `count` streams of the residuals for one sublayer.

    Args:
      residuals: streams, float32 or bfloat16; those from `count` on may hold anything, NaN
        included.
      inverse: per stream its `inverse_rms`, taken once when it joined them.
      score_weight: norm weight times projection weight of the sublayer, float32.
      count: [] int32, streams in the residuals, 0 included.

    Returns: `Frozen`.
    Numerics: float32.
    """
    valid = [jnp.asarray(i < count) for i in range(len(residuals))]
    scores = [
        jnp.where(on, _score(v, score_weight) * r, EMPTY)
        for on, v, r in zip(valid, residuals, inverse, strict=True)
    ]
    maximum = scores[0]
    for score in scores[1:]:
        maximum = jnp.maximum(maximum, score)
    # Where there are none every exponent is EMPTY - EMPTY = 0: the mask must come last.
    weights = [
        jnp.where(on, jnp.exp(s - maximum), 0.0) for on, s in zip(valid, scores, strict=True)
    ]
    combined = []
    for pieces in zip(*(panels(v) for v in residuals), strict=True):
        terms = [
            jnp.where(on, v.astype(F32), 0.0) * w
            for on, v, w in zip(valid, pieces, weights, strict=True)
        ]
        combined.append(sum(terms[1:], terms[0]))
    return Frozen(
        jnp.concatenate(combined, -1),
        maximum,
        sum(weights[1:], weights[0]),
        total(p * p for p in combined),
    )


def attn_res(frozen: Frozen, prefix: Array, score_weight: Array, eps: float) -> tuple[Array, Array]:
    """Adds the running prefix to frozen residuals.

    Args:
      frozen: from `freeze`.
      prefix: the running stream, float32.
      score_weight: as in `freeze`.
      eps: of both norms.

    Returns: the mixed stream, float32; its `inverse_rms`, lane-replicated.
    Numerics: float32. The norm is the square root of a quadratic form of three inner products: its
      relative error is 1e-7 times (|a|^2 + |b|^2) / |a + b|^2 for the two summands a and b, large
      only if residuals and prefix nearly cancel.
    """
    size = 1.0 / features(prefix)
    own, scored = _dot(prefix, prefix), _score(prefix, score_weight)
    cross = _dot(frozen.combined, prefix)
    score = scored * lax.rsqrt(own * size + eps)
    maximum = jnp.maximum(frozen.maximum, score)
    residuals, new = jnp.exp(frozen.maximum - maximum), jnp.exp(score - maximum)
    inverse = 1.0 / (frozen.denominator * residuals + new)
    a, b = residuals * inverse, new * inverse
    square = a * a * frozen.square + 2.0 * (a * b) * cross + b * b * own
    mixed = [c * a + v * b for c, v in zip(panels(frozen.combined), panels(prefix), strict=True)]
    norm = lax.rsqrt(jnp.maximum(square, 0.0) * size + eps)
    return jnp.concatenate(mixed, -1), norm


def attn_res_norm(
    frozen: Frozen, prefix: Array, score_weight: Array, norm_weight: Array, eps: float
) -> Array:
    """`attn_res`, then RMSNorm with `norm_weight` -> bfloat16 in the layout of the streams.

    Numerics: float32, rounded once at the end. The published code also rounds the mixed stream and
      the normed stream before its weight to bfloat16.
    """
    return normalise(*attn_res(frozen, prefix, score_weight, eps), norm_weight)


def _dot(x: Array, y: Array) -> Array:
    """Inner product per row, float32, lane-replicated."""
    return total(a * b for a, b in zip(panels(x), panels(y), strict=True))


def _score(x: Array, vector: Array) -> Array:
    """Inner product of every row with a vector, float32, lane-replicated."""
    weights = vector_panels(vector, x)
    return total(a.astype(F32) * w for a, w in zip(panels(x), weights, strict=True))
