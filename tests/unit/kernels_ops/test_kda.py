"""KDA rows against the float64 recurrence, the reference modules, and roll-back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kimi.kernels.ops import kda
from kimi.reference.kda import ShortConv
from kimi.reference.numerics import rms_norm
from tests.tolerances import FORMULA, OPS_DELTA
from tests.unit.kernels_ops.support import close, f64, vector

HEADS, WIDTH, EPS = 2, 128, 1e-5
# Every log decay that the gate can produce, its ends, and both at once.
RANGES = [(-5, 0), (-5, -5), (-1e-6, 0), (0, 0), (-0.1, 0)]
chunk, step, replay = jax.jit(kda.chunk), jax.jit(kda.step), jax.jit(kda.replay)


def inputs(low, high, correlated, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = rng.standard_normal((3, 8, HEADS * WIDTH))
    if correlated:
        k = k[:1] + 0.01 * k  # nearly the same key in every row
    g = rng.uniform(low, high, (8, HEADS * WIDTH))
    beta = rng.uniform(0.99 if correlated else 0.0, 1.0, (8, HEADS))
    recurrent_state = rng.standard_normal((8, HEADS, WIDTH, WIDTH)).astype(np.float32)
    rows = kda.Rows(*(jnp.asarray(x, jnp.float32) for x in (q, k, v, g, beta)))
    return rows, jnp.asarray(recurrent_state)


def definition(rows, recurrent_state):
    """Outputs [T, H V] and the transposed state after every token, float64."""
    q, k, v, g = (f64(x).reshape(-1, HEADS, WIDTH) for x in rows[:4])
    beta, s = f64(rows.beta), f64(recurrent_state).swapaxes(-1, -2)
    q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) * WIDTH**-0.5
    k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    out, recurrent_states = [], []
    for t in range(len(q)):
        s = s * np.exp(g[t])[..., None]
        error = beta[t][:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], s))
        s = s + k[t][..., None] * error[:, None]
        out.append(np.einsum("hk,hkv->hv", q[t], s).reshape(-1))
        recurrent_states.append(s.swapaxes(-1, -2))
    return np.stack(out), np.stack(recurrent_states)


def poison(rows, live):
    """NaN in every dead row."""
    return kda.Rows(*(x.at[live:].set(jnp.nan) for x in rows))


@pytest.mark.parametrize("correlated", [False, True], ids=["random keys", "correlated keys"])
@pytest.mark.parametrize("low,high", RANGES, ids=str)
def test_chunk_and_replay_of_every_prefix(low, high, correlated):
    rows, recurrent_state = inputs(low, high, correlated)
    recurrent_state = recurrent_state[0]
    expected, recurrent_states = definition(rows, recurrent_state)
    out, trace = chunk(rows, recurrent_state)
    close(out, expected, OPS_DELTA)
    close(replay(recurrent_state, trace, 0), recurrent_state, 0.0)
    for count in range(1, 9):
        close(replay(recurrent_state, trace, count), recurrent_states[count - 1], OPS_DELTA)


@pytest.mark.parametrize("live", [1, 3, 7])
def test_dead_rows_of_a_chunk_do_not_matter(live):
    rows, recurrent_state = inputs(-5, 0, True)
    whole, trace = chunk(rows, recurrent_state[0])
    out, poisoned = chunk(poison(rows, live), recurrent_state[0])
    np.testing.assert_array_equal(out[:live], whole[:live])
    np.testing.assert_array_equal(
        replay(recurrent_state[0], poisoned, live), replay(recurrent_state[0], trace, live)
    )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("low,high", [(-5, 0), (0, 0)], ids=str)
def test_step_of_independent_sequences(batch, low, high):
    rows, recurrent_state = inputs(low, high, False, seed=batch)
    out, new = step(poison(rows, batch), recurrent_state[:batch])
    for b in range(batch):
        expected, recurrent_states = definition(
            kda.Rows(*(x[b : b + 1] for x in rows)), recurrent_state[b]
        )
        close(out[b : b + 1], expected, OPS_DELTA)
        close(new[b], recurrent_states[0], OPS_DELTA)


def test_rolled_back_steps_go_on_like_single_steps():
    """Twelve tokens as two blocks of which 5 and 7 rows are kept, and one by one."""
    recurrent_state = inputs(-2, 0, False)[1][0]
    parts = [inputs(-2, 0, False, seed)[0] for seed in (1, 2)]
    single = blocks = recurrent_state
    for rows, kept in zip(parts, (5, 7), strict=True):
        _, trace = chunk(rows, blocks)
        blocks = replay(blocks, trace, kept)
        for t in range(kept):
            row = kda.Rows(*(jnp.roll(x, -t, 0) for x in rows))
            single = step(row, single[None])[1][0]
    close(blocks, single, OPS_DELTA)


@pytest.mark.parametrize("count", range(9))
def test_short_conv_and_its_roll_back(count):
    rng = np.random.default_rng(count)
    channels, taps = 256, 4
    conv = ShortConv(channels, taps, nnx.Rngs(count))
    weight = vector(conv.weight[...][:, 0].T)
    tokens = jnp.asarray(rng.standard_normal((3 + 16, channels)), jnp.float32)
    conv_state = jnp.full((8, channels), jnp.nan).at[5:].set(tokens[:3])
    run = jax.jit(kda.short_conv)
    first, expected = tokens[3:11], conv(tokens)
    close(run(conv_state, first, weight), expected[:8], FORMULA)
    # Keep `count` of the first eight tokens and go on behind them.
    conv_state = jax.jit(kda.advance_conv_state)(conv_state, first, count)
    close(
        run(conv_state, tokens[3 + count : 11 + count], weight),
        expected[count : count + 8],
        FORMULA,
    )


def test_short_conv_of_a_batch():
    conv = ShortConv(256, 4, nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8, 256)), jnp.float32)
    out = jax.jit(kda.short_conv_batch)(x[:3], x[3], vector(conv.weight[...][:, 0].T))
    close(out, jnp.concatenate([conv(x[:, b]) for b in range(8)]), FORMULA)


def test_gate_saturates_at_its_bound():
    raw = jnp.asarray(np.linspace(-400, 400, 8 * 256).reshape(8, 256), jnp.float32)
    bias, rate = jnp.full((2, 128), 0.25), jnp.full((2, 128), 2.5)
    out = jax.jit(kda.log_decay, static_argnums=3)(raw, bias, rate, -5.0)
    with np.errstate(over="ignore"):
        close(out, -5 / (1 + np.exp(-2.5 * (f64(raw) + 0.25))), FORMULA)
    assert out.min() == -5.0 and out.max() <= 0.0


def test_gated_norm():
    rng = np.random.default_rng(0)
    out, gate = jnp.asarray(rng.standard_normal((2, 8, HEADS * WIDTH)), jnp.float32)
    weight = jnp.asarray(rng.standard_normal((1, WIDTH)), jnp.float32)
    expected = rms_norm(out.reshape(8, HEADS, WIDTH), weight[0], EPS).reshape(8, -1)
    actual = jax.jit(kda.gated_norm, static_argnums=3)(out, weight, gate, EPS)
    close(actual, expected * jax.nn.sigmoid(gate), FORMULA)
