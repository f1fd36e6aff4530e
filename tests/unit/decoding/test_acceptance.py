"""Acceptance: greedy prefix, and the exact distribution of speculative sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.decoding.acceptance import accept_greedy, accept_sampled
from kimi.decoding.sampling import distribution

VOCAB, ROWS, DRAWS = 6, 3, 40_000
CHI_SQUARE_5_DOF = 25.7  # exceeded by chance once in 10,000 runs; the seeds are fixed anyway


def greedy_definition(logits, drafted):
    best = logits.argmax(-1)
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == best[accepted]:
        accepted += 1
    return accepted, best[accepted]


@pytest.mark.parametrize("seed", range(20))
def test_greedy_is_the_longest_agreeing_prefix(seed):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 9))
    logits = rng.standard_normal((rows, 4)).astype(np.float32)
    drafted = np.where(rng.random(rows) < 0.7, logits.argmax(-1), 0)[: rows - 1].astype(np.int32)
    best = jnp.asarray(logits.argmax(-1))
    for live in range(1, rows + 1):  # rows behind were not verified and say nothing
        accepted, following = accept_greedy(best, jnp.asarray(drafted), live)
        expected = greedy_definition(logits[:live], drafted[: live - 1])
        assert (int(accepted), int(following)) == expected


def follows(counts, p):
    """Whether counts of a vocabulary are draws from p [V], by Pearson's test at four sigma."""
    common = p * counts.sum() >= 5  # the rest is pooled, as the test needs
    pooled = np.append(counts[common], counts[~common].sum())
    expected = np.append(p[common], p[~common].sum())
    degrees = len(pooled) - 1
    return chi_square(pooled, expected) < degrees + 4 * np.sqrt(2 * degrees)


def chi_square(counts, p):
    """Pearson's statistic over the categories that can occur; impossible ones must be empty."""
    expected = p * counts.sum()
    assert counts[p == 0].sum() == 0
    return (((counts - expected)[p > 0]) ** 2 / expected[p > 0]).sum()


@pytest.mark.parametrize("temperature,top_p", [(1.0, 1.0), (0.7, 0.9), (2.0, 0.5)])
def test_every_position_is_distributed_as_the_target(temperature, top_p):
    """Whatever was drafted: the first token is distributed as row 0; given that drafts were

    accepted up to row j, the next one as row j.
    """
    rng = np.random.default_rng(1)
    logits = jnp.asarray(rng.standard_normal((ROWS, VOCAB)) * 1.5, jnp.float32)
    p = distribution(logits, temperature, top_p)
    likely = np.asarray(p.argmax(-1))
    for drafted in (likely[:-1], np.array([5, 0])):
        keys = jax.random.split(jax.random.key(7), DRAWS)
        drafts = jnp.asarray(drafted, jnp.int32)
        accepted, following = jax.vmap(lambda k, d=drafts: accept_sampled(k, p, d, len(p)))(keys)
        accepted, following = np.asarray(accepted), np.asarray(following)
        for row in range(ROWS):
            reached = accepted >= row  # drafts before this row were kept
            kept = accepted > row
            token = np.where(kept, drafted[row] if row < ROWS - 1 else -1, following)[reached]
            if reached.sum() < 500:
                continue
            counts = np.bincount(token, minlength=VOCAB)
            assert chi_square(counts, np.asarray(p[row], np.float64)) < CHI_SQUARE_5_DOF


def test_a_biased_rule_would_be_noticed():
    """The statistic rejects 'on refusal draw from p itself', the usual mistake."""
    p = np.array([0.5, 0.3, 0.2])
    rng = np.random.default_rng(0)
    kept = rng.random(DRAWS) < p[0]
    wrong = np.where(kept, 0, rng.choice(3, DRAWS, p=p))
    assert chi_square(np.bincount(wrong, minlength=3), p) > 100


def test_a_certain_draft_is_always_kept_and_an_impossible_one_never():
    p = jnp.asarray([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    for seed in range(50):
        accepted, _ = accept_sampled(jax.random.key(seed), p, jnp.asarray([1]), 2)
        assert int(accepted) == 1
        accepted, following = accept_sampled(jax.random.key(seed), p, jnp.asarray([2]), 2)
        assert (int(accepted), int(following)) == (0, 1)


def test_rows_that_were_not_verified_change_nothing():
    p = jax.random.dirichlet(jax.random.key(0), jnp.ones(5), (4,))
    drafted = jnp.asarray([1, 2, 3])
    for seed in range(20):
        few = accept_sampled(jax.random.key(seed), p, drafted, 2)
        junk = p.at[2:].set(jnp.nan)
        assert [int(x) for x in few] == [
            int(x) for x in accept_sampled(jax.random.key(seed), junk, drafted, 2)
        ]
        assert int(few[0]) <= 1


def test_one_row_is_plain_sampling():
    p = jnp.asarray([[0.1, 0.2, 0.7]])
    keys = jax.random.split(jax.random.key(0), DRAWS)
    none = jnp.zeros((0,), jnp.int32)
    accepted, following = jax.vmap(lambda k: accept_sampled(k, p, none, 1))(keys)
    assert not np.asarray(accepted).any()
    counts = np.bincount(np.asarray(following), minlength=3)
    assert chi_square(counts, np.array([0.1, 0.2, 0.7])) < CHI_SQUARE_5_DOF
