"""Multi-head latent attention: absorbed form, latent epsilon, dead cache rows."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kimi.config import ModelConfig
from kimi.reference.mla import Mla
from kimi.reference.numerics import FLOAT32
from kimi.reference.state import MlaCache, initial_state
from tests.conftest import DATA
from tests.tolerances import K3_GOLDEN

CONFIG = ModelConfig.from_dir(DATA / "k3_tiny")
LAYER = CONFIG.mla_layers[0]


@pytest.fixture(scope="module")
def layer() -> Mla:
    return Mla(CONFIG, FLOAT32, nnx.Rngs(2))


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def expanded(layer: Mla, x: np.ndarray, eps: float) -> np.ndarray:
    """The textbook form in float64: keys and values expanded per head."""
    c = layer.config
    w = {n: np.asarray(getattr(layer, n).weight[...], np.float64) for n in (
        "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm",
        "kv_b_proj", "g_proj", "o_proj",
    )}  # fmt: skip
    tokens, heads, rank = len(x), c.num_attention_heads, c.kv_lora_rank
    q = rms(x @ w["q_a_proj"].T, w["q_a_layernorm"], eps) @ w["q_b_proj"].T
    q = q.reshape(tokens, heads, -1)
    raw = x @ w["kv_a_proj_with_mqa"].T
    kv = rms(raw[:, :rank], w["kv_a_layernorm"], eps) @ w["kv_b_proj"].T
    kv = kv.reshape(tokens, heads, -1)
    shared = np.broadcast_to(raw[:, None, rank:], (tokens, heads, c.qk_rope_head_dim))
    k = np.concatenate([kv[..., : c.qk_nope_head_dim], shared], -1)
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(c.qk_head_dim)
    scores = np.where(np.tril(np.ones((tokens, tokens), bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = np.einsum("hts,shd->thd", p, kv[..., c.qk_nope_head_dim :]).reshape(tokens, -1)
    return (out / (1 + np.exp(-(x @ w["g_proj"].T)))) @ w["o_proj"].T


def empty(slots: int) -> MlaCache:
    cache = initial_state(CONFIG, slots, jnp.float32).layers[LAYER]
    assert isinstance(cache, MlaCache)
    return cache


def test_absorbed_equals_expanded(layer):
    x = np.random.default_rng(0).standard_normal((12, CONFIG.hidden_size)).astype(np.float32)
    got, _ = layer(jnp.asarray(x), empty(20), jnp.int32(0), jnp.int32(12))
    np.testing.assert_allclose(got, expanded(layer, x, 1e-6), rtol=0, atol=K3_GOLDEN)


def test_latent_norms_use_their_own_epsilon(layer):
    """Latents near 1e-3: 1e-5 in place of 1e-6 shrinks them by a factor of about two."""
    x = 1e-3 * np.random.default_rng(1).standard_normal((12, CONFIG.hidden_size))
    x = x.astype(np.float32)
    got, _ = layer(jnp.asarray(x), empty(12), jnp.int32(0), jnp.int32(12))
    right, wrong = (expanded(layer, x, eps) for eps in (1e-6, CONFIG.rms_norm_eps))
    scale = abs(right).max()
    np.testing.assert_allclose(got, right, rtol=0, atol=1e-4 * scale)
    assert abs(right - wrong).max() > 0.1 * scale


def test_the_epsilon_is_a_field():
    config = dataclasses.replace(CONFIG, latent_norm_eps=1e-2)
    layer = Mla(config, FLOAT32, nnx.Rngs(2))
    x = np.random.default_rng(2).standard_normal((5, CONFIG.hidden_size)).astype(np.float32) * 0.05
    got, _ = layer(jnp.asarray(x), empty(8), jnp.int32(0), jnp.int32(5))
    np.testing.assert_allclose(got, expanded(layer, x, 1e-2), rtol=0, atol=K3_GOLDEN)


def test_dead_rows_may_hold_nan(layer):
    x = np.random.default_rng(3).standard_normal((4, CONFIG.hidden_size)).astype(np.float32)
    poisoned = MlaCache(jnp.full((16, CONFIG.latent_cache_width), jnp.nan))
    clean, _ = layer(jnp.asarray(x), empty(16), jnp.int32(0), jnp.int32(4))
    got, cache = layer(jnp.asarray(x), poisoned, jnp.int32(0), jnp.int32(4))
    np.testing.assert_array_equal(got, clean)
    assert np.isfinite(cache.latent[:4]).all()


def test_rows_beyond_the_capacity_do_not_wrap_or_clamp(layer):
    """A block may overshoot the end of the context: the rows inside must not be touched."""
    x = np.random.default_rng(4).standard_normal((6, CONFIG.hidden_size)).astype(np.float32)
    _, cache = layer(jnp.asarray(x), empty(6), jnp.int32(0), jnp.int32(6))
    _, after = layer(jnp.asarray(x), cache, jnp.int32(4), jnp.int32(6))
    np.testing.assert_array_equal(after.latent[:4], cache.latent[:4])
