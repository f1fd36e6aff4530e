"""Kimi Delta Attention for the rows of one step: convolution, gate, delta rule, roll-back.

Per head, with state S [K, V]:  S <- diag(e^g) S;  S <- S + beta k (v - k^T S)^T;  o = q^T S.

The state is held transposed, [H, V, K] float32, so that decays lie along lanes. Row tiles hold
heads side by side: [8, H * K]. Three ways to spend eight rows:
  `step`: rows are independent sequences, each with its own state (a batch, or one row).
  `chunk`: rows are consecutive tokens of one sequence (verification), as one WY block.
  `replay`: the state after the accepted prefix of such a block, from what `chunk` kept of it.

Oracle: reference.kda (`recurrent`, `ShortConv`, `Kda.log_decay`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.ops.lanes import F32, I32, iota, outer_sum, product_nt

L2_EPS = 1e-6  # added to the sum of squares of a query or key


class Rows(NamedTuple):
    """Eight rows of one rank's H heads; all float32.

    Attributes:
      q, k: [8, H * K] after convolution and SiLU, not yet normalised: the norms are factored out
        of the products, so that matmuls need not wait for them.
      v: [8, H * V] after convolution and SiLU.
      g: [8, H * K] log decay in nats, <= 0.
      beta: [8, H] in (0, 1).
    """

    q: Array
    k: Array
    v: Array
    g: Array
    beta: Array


class Trace(NamedTuple):
    """What a block of rows did to the state, enough to replay any prefix of it.

    Attributes:
      update: [8, H * V] float32, beta times the corrected value of each row.
      key: [8, H * K] float32, normalised.
      decay: [8, H * K] float32, log decay summed from the first row through each row.
    """

    update: Array
    key: Array
    decay: Array


def short_conv(conv_state: Array, new: Array, weights: Array) -> Array:
    """Causal depthwise convolution, then SiLU, of consecutive tokens.

    Args:
      conv_state: [8, C] float32; the last T - 1 rows are the tokens before, oldest first.
      new: [8, C] float32.
      weights: [T, C / 128, 128] float32, a vector per tap, oldest first, T <= 9.

    Returns: [8, C] float32.
    Numerics: float32, not rounded (the published code rounds to bfloat16).
    """
    tokens = jnp.concatenate([conv_state, new], 0)
    first = SUBLANES + 1 - weights.shape[0]
    return _convolve(
        [tokens[first + j : first + j + SUBLANES] for j in range(weights.shape[0])], weights
    )


def advance_conv_state(conv_state: Array, new: Array, count: Array | int) -> Array:
    """The conv state after the first `count` of the new tokens: exact roll-back of the convolution.

    Args:
      conv_state, new: as in `short_conv`.
      count: [] int32 in 0..8.

    Returns: [8, C]; its last rows are the newest accepted tokens.
    """
    shift = jnp.asarray(SUBLANES - count, I32)
    row = iota(new.shape, 0)
    rolled = pltpu.roll(conv_state, shift, 0), pltpu.roll(new, shift, 0)
    return jnp.where(row < shift, *rolled)


def short_conv_batch(conv_state: Array, new: Array, weights: Array) -> Array:
    """As `short_conv` with one token of eight independent sequences.

    Args:
      conv_state: [T - 1, 8, C] float32, per tap the tokens of all sequences, oldest first.
      new: [8, C] float32.
      weights: [T, C / 128, 128] float32, a vector per tap, oldest first.

    Returns: [8, C] float32. The next one is conv_state[1:] and `new`.
    """
    return _convolve([*(conv_state[j] for j in range(weights.shape[0] - 1)), new], weights)


def log_decay(raw: Array, dt_bias: Array, rate: Array, lower_bound: float) -> Array:
    """lower_bound * sigmoid(rate * (raw + dt_bias)), [8, C] float32.

    Args:
      raw: [8, C] float32, the low-rank decay projection.
      dt_bias: [C / 128, 128] float32, a vector.
      rate: [C / 128, 128] float32, exp(A_log) of each channel's head.
      lower_bound: nats per token, `gate_lower_bound`.
    """
    panels = [
        lower_bound * jax.nn.sigmoid(rate[i : i + 1] * (x + dt_bias[i : i + 1]))
        for i, x in enumerate(_heads(raw, LANES))
    ]
    return jnp.concatenate(panels, -1)


def gated_norm(out: Array, weight: Array, gate: Array, eps: float) -> Array:
    """RMSNorm of every head's output, times weight and sigmoid(gate).

    Args:
      out, gate: [8, H * V] float32.
      weight: [1, V] float32.

    Returns: [8, H * V] float32.
    """
    width = weight.shape[-1]
    heads = []
    for o, z in zip(_heads(out, width), _heads(gate, width), strict=True):
        inverse = lax.rsqrt(_sum(o * o) * (1.0 / width) + eps)
        heads.append(o * inverse * weight * jax.nn.sigmoid(z))
    return jnp.concatenate(heads, -1)


def step(rows: Rows, recurrent_state: Array) -> tuple[Array, Array]:
    """One token of each of B independent sequences.

    Args:
      rows: row b belongs to sequence b; rows from B on are dead.
      recurrent_state: [B, H, V, K] float32, B <= 8.

    Returns: output [8, H * V] float32 (dead rows arbitrary); new recurrent_state [B, H, V, K].
    Numerics: products with the state of three bfloat16 passes; its update is float32.
    """
    heads, width = range(recurrent_state.shape[1]), recurrent_state.shape[-1]
    q, k, v, g, beta = _by_head(rows, width)
    decay = [jnp.exp(x) for x in g]
    # Every sequence's state meets all rows: sixteen rows cost what one costs. Each row then takes
    # the product with its own state.
    read = [jnp.zeros((2 * SUBLANES, recurrent_state.shape[2]), F32) for _ in heads]
    both = [jnp.concatenate([k[h] * decay[h], q[h] * decay[h]], 0) for h in heads]
    for b in range(recurrent_state.shape[0]):
        own = (iota(read[0].shape, 0) & (SUBLANES - 1)) == b
        products = [product_nt(both[h], recurrent_state[b, h]) for h in heads]
        read = [jnp.where(own, p, r) for p, r in zip(products, read, strict=True)]
    k_norm, q_norm = _norms(k, q)
    update = [beta[h] * (v[h] - read[h][:SUBLANES] * k_norm[h]) for h in heads]
    out = [
        read[h][SUBLANES:] * q_norm[h] + _sum(k[h] * q[h]) * k_norm[h] * q_norm[h] * update[h]
        for h in heads
    ]
    key = [k[h] * k_norm[h] for h in heads]
    new = [
        jnp.stack([
            recurrent_state[b, h] * decay[h][b : b + 1] + _column(update[h], b) * key[h][b : b + 1]
            for h in heads
        ])
        for b in range(recurrent_state.shape[0])
    ]  # fmt: skip
    return jnp.concatenate(out, -1), jnp.stack(new)


def chunk(rows: Rows, recurrent_state: Array, count: int = SUBLANES) -> tuple[Array, Trace]:
    """Consecutive tokens of one sequence, 8 at most, as one WY block.

    With cumulative log decays G, row t corrects v_t by the state before the block and by the rows
    before it: U = beta (v - (k e^G) S) - A U for the strictly lower triangle
    A[t, j] = beta_t k_t . (k_j e^(G_t - G_j)), solved by forward substitution. No factor exceeds 1.

    Args:
      rows: the tokens in order; rows behind the last valid one are dead (causality protects the
        valid ones from them).
      recurrent_state: [H, V, K] float32, before the first token.
      count: rows that may be valid.

    Returns: output [8, H * V] float32; `Trace`. `replay` turns state and trace into the state
      after any number of the rows.
    Numerics: float32; products with the state of three bfloat16 passes. Exponents of differences
      of sums of up to eight decays lose 40 * 2^-24 at the steepest decay.
    """
    heads, width = range(recurrent_state.shape[0]), recurrent_state.shape[-1]
    q, k, v, g, beta = _by_head(rows, width)
    row = iota((SUBLANES, width), 0)
    total = [_running_sum(x, row) for x in g]
    decay = [jnp.exp(x) for x in total]
    read = [
        product_nt(jnp.concatenate([k[h] * decay[h], q[h] * decay[h]], 0), recurrent_state[h])
        for h in heads
    ]
    k_norm, q_norm = _norms(k, q)
    before: list[list[Array]] = [[] for _ in heads]  # columns of A
    within: list[list[Array]] = [[] for _ in heads]  # columns of the causal q . k
    for j in range(count):
        for h in heads:  # heads inside: independent work side by side hides the latency of sums
            decayed = _row(k[h], j) * jnp.exp(jnp.minimum(total[h] - _row(total[h], j), 0.0))
            scale = _row(k_norm[h], j)
            if j < count - 1:
                before[h].append(_sum(k[h] * decayed) * k_norm[h] * scale * beta[h])
            within[h].append(_sum(q[h] * decayed) * q_norm[h] * scale)
    update = [beta[h] * (v[h] - read[h][:SUBLANES] * k_norm[h]) for h in heads]
    # The triangles are masked after their products: zero times a dead row's NaN would be NaN.
    for j in range(count - 1):
        update = [
            x - jnp.where(row > j, before[h][j] * _row(x, j), 0.0) for h, x in enumerate(update)
        ]
    out = [read[h][SUBLANES:] * q_norm[h] for h in heads]
    for j in range(count):
        out = [
            x + jnp.where(row >= j, within[h][j] * _row(update[h], j), 0.0)
            for h, x in enumerate(out)
        ]
    key = [k[h] * k_norm[h] for h in heads]
    trace = Trace(*(jnp.concatenate(x, -1) for x in (update, key, total)))
    return jnp.concatenate(out, -1), trace


def replay(recurrent_state: Array, trace: Trace, count: Array | int) -> Array:
    """The state after the first `count` rows of a block.

    Args:
      recurrent_state: [H, V, K] float32, before the block.
      trace: of the block; rows from `count` on may hold anything.
      count: [] int32 in 0..8. Eight gives the final state of the block, 0 the state as it was.

    Returns: [H, V, K] float32.
    Numerics: one masked rank-8 update, products of three bfloat16 passes.
    """
    width = recurrent_state.shape[-1]
    row = iota((SUBLANES, width), 0)
    accepted, last = row < count, row == jnp.asarray(count, I32) - 1
    new = []
    for h, (u, k, total) in enumerate(zip(*(_heads(x, width) for x in trace), strict=True)):
        end = jnp.sum(jnp.where(last, total, 0.0), 0, keepdims=True)  # no row: 0, decay 1
        key = jnp.where(accepted, k * jnp.exp(jnp.minimum(end - total, 0.0)), 0.0)
        written = outer_sum(jnp.where(accepted, u, 0.0), key)
        new.append(recurrent_state[h] * jnp.exp(end) + written)
    return jnp.stack(new)


def _convolve(shifted: list[Array], weights: Array) -> Array:
    """SiLU of the sum over taps, panel by panel; `shifted`: the rows of every tap, [8, C]."""
    out = []
    for i, columns in enumerate(zip(*(_heads(x, LANES) for x in shifted), strict=True)):
        terms = [x * weights[j, i : i + 1] for j, x in enumerate(columns)]
        y = sum(terms[1:], terms[0])
        out.append(y * jax.nn.sigmoid(y))
    return jnp.concatenate(out, -1)


def _heads(x: Array, width: int) -> list[Array]:
    """[8, H * width] -> H arrays [8, width]."""
    return [x[:, i : i + width] for i in range(0, x.shape[-1], width)]


def _by_head(rows: Rows, width: int) -> tuple[list[Array], ...]:
    """q, k, v, g per head, [8, width]; beta per head, lane-replicated."""
    q, k, v, g = (_heads(x, width) for x in rows[:4])
    beta = [jnp.broadcast_to(b, (SUBLANES, width)) for b in _heads(rows.beta, 1)]
    return q, k, v, g, beta


def _sum(x: Array) -> Array:
    """[8, W] -> [8, W], each row's sum on all its lanes."""
    return jnp.broadcast_to(jnp.sum(x, -1, keepdims=True), x.shape)


def _column(x: Array, b: int) -> Array:
    """Row b of [8, W] as a column [W, 1]: the diagonal of its broadcast, summed over lanes."""
    square = (x.shape[1], x.shape[1])
    diagonal = iota(square, 0) == iota(square, 1)
    return jnp.sum(jnp.where(diagonal, x[b : b + 1], 0.0), -1, keepdims=True)


def _norms(k: list[Array], q: list[Array]) -> tuple[list[Array], list[Array]]:
    """Factors that normalise keys, and queries with their 1 / sqrt(K)."""
    scale = q[0].shape[-1] ** -0.5
    k_norm = [lax.rsqrt(_sum(x * x) + L2_EPS) for x in k]
    return k_norm, [lax.rsqrt(_sum(x * x) + L2_EPS) * scale for x in q]


def _row(x: Array, j: int) -> Array:
    """Row j on every row."""
    return jnp.broadcast_to(x[j : j + 1], x.shape)


def _running_sum(x: Array, row: Array) -> Array:
    """Sum of this row and all before it."""
    distance = 1
    while distance < SUBLANES:
        x = x + jnp.where(row >= distance, pltpu.roll(x, distance, 0), 0.0)
        distance *= 2
    return x
