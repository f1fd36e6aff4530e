"""Sampling options and the distribution they describe."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.decoding.sampling import Sampling, distribution
from kimi.errors import InputError


@pytest.mark.parametrize(
    "options,word",
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": 101.0}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**31}, "seed"),
    ],
)
def test_bad_options_are_named(options, word):
    with pytest.raises(InputError, match=rf"^{word}: expected .*found"):
        Sampling(**options)


def test_plain_softmax():
    logits = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32) * 4
    wide = np.exp(logits.astype(np.float64) / 0.7)
    got = distribution(jnp.asarray(logits), 0.7, 1.0)
    np.testing.assert_allclose(got, wide / wide.sum(-1, keepdims=True), atol=1e-6)


def test_top_p_keeps_the_token_that_crosses():
    p = np.array([0.5, 0.3, 0.15, 0.05])
    for top_p, kept in [(0.4, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (1.0, 4)]:
        got = np.asarray(distribution(jnp.log(jnp.asarray(p, jnp.float32)), 1.0, top_p - 1e-6))
        expected = np.where(np.arange(4) < kept, p, 0)
        np.testing.assert_allclose(got, expected / expected.sum(), atol=1e-6)


@given(st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=30), st.floats(0.01, 1))
@settings(max_examples=60, deadline=None)
def test_any_top_p_is_a_distribution_over_a_top_set(logits, top_p):
    p = np.asarray(distribution(jnp.asarray(logits, jnp.float32), 1.0, top_p))
    full = np.asarray(distribution(jnp.asarray(logits, jnp.float32), 1.0, 1.0))
    assert abs(p.sum() - 1) < 1e-5 and (p >= 0).all()
    kept = p > 0
    assert kept.any()
    if (~kept).any():
        assert full[kept].min() >= full[~kept].max()
    assert full[kept].sum() >= top_p - 1e-5
