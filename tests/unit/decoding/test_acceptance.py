"""Acceptance: greedy prefix, and the exact distribution of speculative sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.decoding.acceptance import accept_greedy, accept_sampled
from kimi.decoding.sampling import Sampling, distribution
from tests.sampling import drawn

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


def accept(keys, logits, drafted, valid, sampling):
    """`accept_sampled` of many keys, [K] each."""
    rows = len(logits)
    drafts = jnp.append(jnp.asarray(drafted, jnp.int32), -1)

    def one(key):
        split = jax.vmap(jax.random.split)(jax.random.split(key, rows))
        uniform = jax.vmap(jax.random.uniform)(split[:-1, 0])
        return accept_sampled(uniform, drawn(logits, drafts, split[:, 1], sampling), valid)

    return [np.asarray(x) for x in jax.jit(jax.vmap(one))(keys)]


@pytest.mark.parametrize("temperature,top_p", [(1.0, 1.0), (0.7, 0.9), (2.0, 0.5)])
def test_every_position_is_distributed_as_the_target(temperature, top_p):
    """Whatever was drafted: the first token is distributed as row 0; given that drafts were

    accepted up to row j, the next one as row j.
    """
    rng = np.random.default_rng(1)
    logits = jnp.asarray(rng.standard_normal((ROWS, VOCAB)) * 1.5, jnp.float32)
    p = distribution(logits, temperature, top_p)
    likely = np.asarray(p.argmax(-1))
    keys = jax.random.split(jax.random.key(7), DRAWS)
    for drafted in (likely[:-1], np.array([5, 0])):
        accepted, following = accept(keys, logits, drafted, ROWS, Sampling(temperature, top_p))
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
    logits = jnp.asarray([[-np.inf, 1.0, -np.inf], [0.2, 0.3, 0.5]], jnp.float32)
    keys = jax.random.split(jax.random.key(0), 200)
    for sampling in (Sampling(1.0), Sampling(1.0, 0.9)):
        accepted, _ = accept(keys, logits, [1], 2, sampling)
        assert (accepted == 1).all()
        accepted, following = accept(keys, logits, [2], 2, sampling)
        assert (accepted == 0).all() and (following == 1).all()


def test_rows_that_were_not_verified_change_nothing():
    logits = jax.random.normal(jax.random.key(0), (4, 5))
    keys = jax.random.split(jax.random.key(1), 100)
    for sampling in (Sampling(1.0), Sampling(1.0, 0.9)):
        few = accept(keys, logits, [1, 2, 3], 2, sampling)
        other = accept(keys, logits.at[2:].set(jnp.nan), [1, 2, 3], 2, sampling)
        assert all(map(np.array_equal, few, other)) and few[0].max() <= 1


def test_one_row_is_plain_sampling():
    p = np.array([0.1, 0.2, 0.7])
    keys = jax.random.split(jax.random.key(0), DRAWS)
    logits = jnp.log(jnp.asarray(p[None], jnp.float32))
    accepted, following = accept(keys, logits, [], 1, Sampling(1.0))
    assert not accepted.any()
    assert chi_square(np.bincount(following, minlength=3), p) < CHI_SQUARE_5_DOF
