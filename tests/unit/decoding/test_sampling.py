"""Sampling options and the distribution they describe."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.decoding import drawing
from kimi.decoding.sampling import Sampling, distribution
from kimi.errors import InputError
from tests import sampling as whole
from tests.sampling import chances, drawn
from tests.tolerances import SAMPLED_CHANCE
from tests.unit.decoding.test_acceptance import follows


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
        ({"seed": 1.0}, "seed"),
        ({"seed": True}, "seed"),
        ({"seed": None}, "seed"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": None}, "temperature"),
        ({"temperature": 10**5000}, "temperature"),
        ({"top_p": np.bool_(True)}, "top_p"),
        ({"top_p": 1 + 0j}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 2**31}, "top_k"),
        ({"top_k": np.float32(3)}, "top_k"),
        ({"top_k": b"3"}, "top_k"),
    ],
)
def test_bad_options_are_named(options, word):
    with pytest.raises(InputError, match=rf"^{word}: expected .*found"):
        Sampling(**options)


def test_scalars_of_array_libraries_become_plain_numbers():
    found = Sampling(np.float32(0.5), 1, jnp.int32(3), np.int64(2))
    assert found == Sampling(0.5, 1.0, 3, 2)
    assert [type(v) for v in vars(found).values()] == [float, float, int, int]


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
    padded = jnp.asarray(logits + [-np.inf] * (30 - len(logits)))  # one shape to compile
    p, full = (np.asarray(distribution(padded, 1.0, x)) for x in (top_p, 1.0))
    assert abs(p.sum() - 1) < 1e-5 and (p >= 0).all()
    kept = p > 0
    assert kept.any()
    if (~kept).any():
        assert full[kept].min() >= full[~kept].max()
    assert full[kept].sum() >= top_p - 1e-5


def test_a_top_p_of_1_filters_nothing():
    """The tail of a large vocabulary is below what a running float32 sum can see."""
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((1, 163_840)) * 6, jnp.float32)
    p = np.asarray(jax.nn.softmax(logits[0]), np.float64)
    rare = np.flatnonzero((p > 0) & (p < p.max() * 1e-9))[:64]
    rows = jnp.broadcast_to(logits, (len(rare), logits.shape[1]))
    keys = jax.random.split(jax.random.key(0), len(rare))
    for top_k in (0, logits.shape[1]):
        found = drawn(rows, jnp.asarray(rare), keys, Sampling(1.0, 1.0, 0, top_k))
        np.testing.assert_allclose(found.chance, p[rare], rtol=SAMPLED_CHANCE)


LOGITS = np.random.default_rng(3).standard_normal((6, 512)).astype(np.float32)
SAMPLINGS = [
    Sampling(1.0), Sampling(0.7, 0.9), Sampling(1.0, 0.95, 0, 40), Sampling(1.0, 1.0, 0, 3),
    Sampling(100.0, 0.99), Sampling(0.0),
]  # fmt: skip


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_draws_do_not_depend_on_the_number_of_ranks(sampling, ranks, monkeypatch):
    """Nor on how many candidates a rank sends: the flat ones among them take all logits."""
    logits = jnp.asarray(LOGITS * np.array([6, 3, 1, 0.1, 0, 9], np.float32)[:, None])
    drafts = jnp.asarray([int(LOGITS[0].argmax()), 3, 511, -1, 0, 7])
    for seed in range(3):
        keys = jax.random.split(jax.random.key(seed), len(logits))
        alone = drawn(logits, drafts, keys, sampling)
        found = drawn(logits, drafts, keys, sampling, ranks)
        monkeypatch.setattr(drawing, "CANDIDATES", 3)
        whole._drawn.clear_cache()  # the number of candidates is compiled in
        few = drawn(logits, drafts, keys, sampling, ranks)
        monkeypatch.undo()
        whole._drawn.clear_cache()
        for other in (found, few):
            np.testing.assert_array_equal(other.drawn, alone.drawn)
            np.testing.assert_array_equal(other.redrawn, alone.redrawn)
            np.testing.assert_allclose(other.chance, alone.chance, rtol=SAMPLED_CHANCE)
        same = np.asarray(alone.redrawn == drafts)
        assert (np.asarray(alone.chance)[same] == 1).all()  # such a draft is never rejected


@pytest.mark.parametrize("sampling", SAMPLINGS[:4], ids=str)
def test_draws_follow_the_distribution(sampling):
    """Of all tokens, and of those that are not the draft."""
    p = np.asarray(distribution(LOGITS[0] * 3, sampling.temperature, sampling.top_p,
                                sampling.top_k), np.float64)  # fmt: skip
    draws, draft = 4000, int(p.argmax())
    logits = jnp.broadcast_to(jnp.asarray(LOGITS[0] * 3), (draws, 512))
    found = drawn(
        logits, jnp.full(draws, draft), jax.random.split(jax.random.key(1), draws), sampling, 4
    )
    counts = np.bincount(np.asarray(found.drawn), minlength=512)
    wrong, kept = counts.copy(), p > 0
    wrong[kept] = counts[kept][::-1]
    assert follows(counts, p) and not follows(wrong, p)
    without = np.where(np.arange(512) == draft, 0, p)
    counts = np.bincount(np.asarray(found.redrawn), minlength=512)
    assert counts[draft] == 0 and follows(counts, without / without.sum())


def test_a_top_p_that_rounds_to_0_keeps_one_token():
    assert (np.asarray(distribution(jnp.asarray([1.0, 3.0, 2.0]), 1.0, 1e-60)) > 0).tolist() == [
        False, True, False,
    ]  # fmt: skip


def by_definition(p, top_p, top_k):
    """One token after the other, the most probable first, the lower id among equals."""
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))[: top_k or len(p)]
    whole, kept, before = sum(p[i] for i in order), np.zeros(len(p)), 0.0
    for i in order:
        if kept.any() and before >= top_p * whole:
            break
        kept[i] = p[i]
        before += p[i]
    return kept / kept.sum()


@given(
    st.lists(st.integers(1, 16), min_size=2, max_size=12), st.integers(0, 14), st.integers(1, 41)
)
@settings(max_examples=60, deadline=None)
def test_top_k_comes_before_top_p(weights, top_k, part):
    """Weights of few values, so that many are equal."""
    weights = np.array(weights + [1] * (12 - len(weights)), np.float64)
    p, top_p = weights / weights.sum(), part / 41  # no sum of probabilities is at the edge
    if any(abs(s - top_p) < 1e-5 for s in edges(p, top_k)):
        return
    for computed in (distribution, chances):
        got = computed(jnp.log(jnp.asarray(p, jnp.float32)), 1.0, top_p, top_k)
        np.testing.assert_allclose(got, by_definition(p, top_p, top_k), atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0, 9.0])
@pytest.mark.parametrize("options", [(1.0, 1.0, 0), (0.7, 0.9, 0), (1.0, 0.95, 40), (2.0, 0.5, 3)])
def test_chances_are_the_definition(scale, options):
    """Of flat and of steep rows."""
    logits = jnp.asarray(LOGITS[1] * scale)
    found, expected = chances(logits, *options), distribution(logits, *options)
    differ = ((found == 0) != (expected == 0)).sum()
    assert differ <= 1  # one token at the edge of top_p, where rounding decides
    if not differ:
        np.testing.assert_allclose(found, expected, rtol=SAMPLED_CHANCE)


def edges(p, top_k):
    """Where a top_p would leave it to rounding whether one more token is kept."""
    ranked = np.sort(p)[::-1][: top_k or len(p)]
    return np.cumsum(ranked)[:-1] / ranked.sum()
