import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.lab.train import calibration


def test_fit_finds_the_line():
    rng = np.random.default_rng(0)
    x = rng.normal(1, 2, 20_000)
    accepted = rng.random(len(x)) < 1 / (1 + np.exp(-(0.6 * x - 0.3)))
    a, b = calibration.fit(x, accepted)
    assert (a, b) == pytest.approx((0.6, -0.3), abs=0.05)
    assert calibration.error(a * x + b, accepted) < 0.02 < calibration.error(x, accepted)


@pytest.mark.parametrize("outcome", [False, True])
def test_fit_of_one_outcome_is_the_identity(outcome):
    assert calibration.fit(np.array([1.0, 2.0]), np.full(2, outcome)) == (1, 0)


def test_rescaling_changes_the_log_odds_alone(draft_model, draft_weights):
    hidden = jax.random.normal(jax.random.key(2), (5, 64))
    previous = jnp.arange(5)
    model = draft_model.merge(draft_weights)
    logits, _, before = model.heads(hidden, previous)
    calibration.rescale(model, 0.5, -0.25)
    same, _, after = model.heads(hidden, previous)
    assert (same == logits).all()
    # Half of bfloat16's last place in each of the products.
    np.testing.assert_allclose(after, 0.5 * before - 0.25, atol=0.02)
    proj = model.confidence_head.proj
    for param in (proj.weight[...], proj.bias[...]):
        assert (param == param.astype(jnp.bfloat16).astype(jnp.float32)).all()
