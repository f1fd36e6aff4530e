"""Kimi Delta Attention: gate, normalisation, chunked form against the recurrence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kimi.config import ModelConfig
from kimi.reference.kda import Kda, chunked, recurrent, unit_lower_inverse
from kimi.reference.numerics import FLOAT32, l2_normalize
from kimi.reference.state import initial_state
from tests.conftest import DATA
from tests.tolerances import FORMULA, KDA_CHUNK

CONFIG = ModelConfig.from_dir(DATA / "k3_tiny")
HEADS, WIDTH = 2, 32


def inputs(rng, tokens, low, high, correlated=False, heads=HEADS):
    """Random q, k, v, log decays between low and high, beta, memory."""
    q, k, v = rng.standard_normal((3, tokens, heads, WIDTH))
    if correlated:
        k = k[:1] + 0.05 * k  # nearly the same key at every token
    g = rng.uniform(low, high, (tokens, heads, WIDTH))
    beta = rng.uniform(0.9 if correlated else 0.0, 1.0, (tokens, heads))
    memory = rng.standard_normal((heads, WIDTH, WIDTH))
    q, k = l2_normalize(jnp.asarray(q)), l2_normalize(jnp.asarray(k))
    return q, k, *(jnp.asarray(x, jnp.float32) for x in (v, g, beta, memory))


def float64_recurrence(q, k, v, g, beta, memory):
    """The definition, in numpy float64."""
    q, k, v, g, beta, s = (np.asarray(x, np.float64) for x in (q, k, v, g, beta, memory))
    out = np.zeros(v.shape)
    for t in range(len(q)):
        s = s * np.exp(g[t])[..., None]
        error = beta[t][:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], s))
        s = s + k[t][..., None] * error[:, None]
        out[t] = np.einsum("hk,hkv->hv", q[t], s)
    return out, s


# The whole range of log decays that the gate can produce, its ends, and both at once.
RANGES = [(-5, 0), (-5, -5), (-5, -4.9), (-1e-6, 0), (0, 0), (-2.5, -2.4), (-0.1, 0)]


@pytest.mark.parametrize("correlated", [False, True], ids=["random keys", "correlated keys"])
@pytest.mark.parametrize("low,high", RANGES, ids=str)
def test_chunked_equals_the_definition(low, high, correlated):
    args = inputs(np.random.default_rng(3), 64, low, high, correlated)
    expected, memory = float64_recurrence(*args)
    out, final = jax.jit(chunked)(*args)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out, expected, rtol=0, atol=KDA_CHUNK * abs(expected).max())
    np.testing.assert_allclose(final, memory, rtol=0, atol=KDA_CHUNK * abs(memory).max())


@pytest.mark.parametrize("low,high", RANGES, ids=str)
def test_recurrent_equals_the_definition(low, high):
    args = inputs(np.random.default_rng(4), 24, low, high)
    expected, memory = float64_recurrence(*args)
    out, memories = jax.jit(recurrent)(*args)
    np.testing.assert_allclose(out, expected, rtol=0, atol=KDA_CHUNK * abs(expected).max())
    np.testing.assert_allclose(memories[-1], memory, rtol=0, atol=KDA_CHUNK * abs(memory).max())


def test_channels_with_opposite_decays_in_one_chunk():
    """One channel forgets at once while its neighbour keeps everything."""
    q, k, v, g, beta, memory = inputs(np.random.default_rng(5), 48, 0, 0)
    g = g.at[..., ::2].set(-5.0)
    expected, _ = float64_recurrence(q, k, v, g, beta, memory)
    out, _ = jax.jit(chunked)(q, k, v, g, beta, memory)
    np.testing.assert_allclose(out, expected, rtol=0, atol=KDA_CHUNK * abs(expected).max())


def test_inverse_of_the_worst_triangle():
    """All ones below the diagonal (identical keys, no decay): a Neumann product loses 4 digits."""
    lower = np.tril(np.ones((16, 16), np.float32), -1)
    expected = np.linalg.inv(np.eye(16) + lower)
    np.testing.assert_allclose(unit_lower_inverse(jnp.asarray(lower)), expected, atol=1e-6)


def test_padding_leaves_the_memory_alone():
    q, k, v, g, beta, memory = inputs(np.random.default_rng(6), 32, -5, 0)
    live = (jnp.arange(32) < 11)[:, None]
    masked = (q, k, v, jnp.where(live[..., None], g, 0), jnp.where(live, beta, 0))
    _, final = chunked(*masked, memory)
    _, memories = recurrent(q[:11], k[:11], v[:11], g[:11], beta[:11], memory)
    np.testing.assert_allclose(final, memories[-1], rtol=0, atol=KDA_CHUNK * 4)


@pytest.fixture(scope="module")
def layer() -> Kda:
    layer = Kda(CONFIG, FLOAT32, nnx.Rngs(1))
    rng = np.random.default_rng(7)
    layer.A_log[...] = jnp.asarray(rng.uniform(-1, 2.5, CONFIG.kda.num_heads), jnp.float32)
    layer.dt_bias[...] = jnp.asarray(rng.normal(-1, 2, CONFIG.kda.width), jnp.float32)
    return layer


def test_gate_is_the_bounded_sigmoid(layer):
    """Neither the softplus of Kimi-Linear nor a clamped one: both are told apart here."""
    x = np.random.default_rng(8).standard_normal((9, CONFIG.hidden_size)).astype(np.float32)
    f_a, f_b, a_log, bias = (
        np.asarray(p[...], np.float64)
        for p in (layer.f_a_proj.weight, layer.f_b_proj.weight, layer.A_log, layer.dt_bias)
    )
    heads = CONFIG.kda.num_heads
    raw = (x @ f_a.T @ f_b.T + bias).reshape(9, heads, -1)
    rate = np.exp(a_log)[:, None]
    bounded = -5 / (1 + np.exp(-rate * raw))
    softplus = -rate * np.logaddexp(0, raw)
    got = layer.log_decay(jnp.asarray(x))
    np.testing.assert_allclose(got, bounded, rtol=0, atol=50 * FORMULA)
    assert (np.asarray(got) >= -5).all() and (np.asarray(got) < 0).all()
    for wrong in (softplus, np.maximum(softplus, -5)):
        assert abs(bounded - wrong).max() > 0.5


def test_l2_epsilon_is_added_to_the_sum():
    """At tiny amplitude an epsilon on the mean would be 128 times off."""
    x = np.full((1, 128), 1e-5, np.float32)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).sum(-1, keepdims=True) + 1e-6)
    on_the_mean = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(l2_normalize(jnp.asarray(x)), expected, rtol=1e-5)
    assert abs(expected - on_the_mean).max() > 1e-5


@pytest.mark.parametrize("valid", [0, 1, 2, 3, 15, 16, 17, 32])
def test_prefill_padding_leaves_no_trace(layer, valid):
    """Also with fewer tokens than the convolution has history."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((32, CONFIG.hidden_size)).astype(np.float32)
    state = initial_state(CONFIG, 32, jnp.float32).layers[0]
    _, state = layer(jnp.asarray(x[:16]), state, jnp.int32(0), jnp.int32(16))
    poisoned = x.copy()
    poisoned[valid:] = 7.0
    _, padded = layer(jnp.asarray(poisoned), state, jnp.int32(16), jnp.int32(valid))
    expected = state
    for row in x[:valid]:
        _, rows = layer.rows(jnp.asarray(row[None]), expected, jnp.int32(0))
        expected = jax.tree.map(lambda a: a[0], rows)
    np.testing.assert_allclose(padded.conv_state, expected.conv_state, rtol=0, atol=KDA_CHUNK)
    np.testing.assert_allclose(
        padded.recurrent_state, expected.recurrent_state, rtol=0, atol=KDA_CHUNK
    )
