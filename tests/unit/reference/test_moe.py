"""Router and experts."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kimi.activation import situ
from kimi.config import ModelConfig
from kimi.reference.moe import Experts, Router
from kimi.reference.numerics import FLOAT32
from tests.conftest import DATA
from tests.tolerances import EXPERT_FORMS, FORMULA

CONFIG = ModelConfig.from_dir(DATA / "k3_tiny")


@pytest.fixture(scope="module")
def router() -> Router:
    router = Router(CONFIG, nnx.Rngs(0))
    bias = 0.3 * np.random.default_rng(0).standard_normal(CONFIG.num_experts)
    router.e_score_correction_bias[...] = jnp.asarray(bias, jnp.float32)
    return router


def test_weights_before_the_norm(router):
    """Unbiased scores over their sum, times the scaling factor (2.5 here).

    The RMSNorm after the experts hides any wrong scale, so nothing downstream would notice.
    """
    x = np.random.default_rng(1).standard_normal((7, CONFIG.hidden_size)).astype(np.float32)
    ids, weights = router(jnp.asarray(x))
    gate = np.asarray(router.weight[...], np.float64)
    scores = 1 / (1 + np.exp(-x @ gate.T))
    biased = scores + np.asarray(router.e_score_correction_bias[...])
    expected = np.argsort(-biased, -1, kind="stable")[:, : CONFIG.num_experts_per_token]
    np.testing.assert_array_equal(ids, expected)
    chosen = np.take_along_axis(scores, expected, -1)
    right = chosen / chosen.sum(-1, keepdims=True) * CONFIG.routed_scaling_factor
    np.testing.assert_allclose(weights, right, rtol=0, atol=10 * FORMULA)
    np.testing.assert_allclose(weights.sum(-1), CONFIG.routed_scaling_factor, rtol=1e-6)
    with_bias = np.take_along_axis(biased, expected, -1)
    assert abs(right - 2.5 * with_bias / with_bias.sum(-1, keepdims=True)).max() > 0.01


def test_ties_go_to_the_lower_id(router):
    tied = Router(CONFIG, nnx.Rngs(0))
    tied.weight[...] = jnp.zeros_like(tied.weight[...])
    ids, weights = tied(jnp.ones((2, CONFIG.hidden_size)))
    np.testing.assert_array_equal(ids, [[0, 1, 2, 3]] * 2)
    np.testing.assert_allclose(weights, CONFIG.routed_scaling_factor / 4, rtol=1e-6)


def test_the_bias_alone_can_choose_but_not_weigh(router):
    biased = Router(CONFIG, nnx.Rngs(0))
    biased.weight[...] = jnp.zeros_like(biased.weight[...])
    biased.e_score_correction_bias[...] = jnp.arange(CONFIG.num_experts, dtype=jnp.float32)
    ids, weights = biased(jnp.ones((1, CONFIG.hidden_size)))
    np.testing.assert_array_equal(ids, [[15, 14, 13, 12]])
    np.testing.assert_allclose(weights, CONFIG.routed_scaling_factor / 4, rtol=1e-6)


@pytest.mark.parametrize("tokens", [1, 3, 8, 40])
def test_gathered_equals_dense(tokens):
    experts = Experts(CONFIG, FLOAT32, nnx.Rngs(3))
    rng = np.random.default_rng(tokens)
    z = jnp.asarray(rng.standard_normal((tokens, CONFIG.routed_expert_hidden_size)), jnp.float32)
    ids = np.stack([rng.permutation(CONFIG.num_experts)[:4] for _ in range(tokens)])
    weights = jnp.asarray(rng.uniform(0, 1, (tokens, 4)), jnp.float32)
    a = experts.gathered(z, jnp.asarray(ids), weights)
    b = experts.dense(z, jnp.asarray(ids), weights)
    np.testing.assert_allclose(a, b, rtol=0, atol=EXPERT_FORMS)


def test_situ_is_bounded_on_both_sides():
    g = np.linspace(-30, 30, 61, dtype=np.float32)
    u = np.linspace(-200, 200, 61, dtype=np.float32)
    got = situ(jnp.asarray(g), jnp.asarray(u), 4.0, 25.0)
    wide = g.astype(np.float64)
    expected = 4 * np.tanh(wide / 4) / (1 + np.exp(-wide)) * 25 * np.tanh(u / 25)
    np.testing.assert_allclose(got, expected, rtol=0, atol=100 * FORMULA)
    assert abs(np.asarray(got)).max() <= 100


def test_scaling_factor_is_read_from_the_config():
    config = dataclasses.replace(CONFIG, routed_scaling_factor=1.0)
    _, weights = Router(config, nnx.Rngs(0))(jnp.ones((1, CONFIG.hidden_size)))
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-6)
