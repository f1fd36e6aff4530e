from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.lab.train import drafter
from kimi.lab.train.recipe import SMOKE
from kimi.reference.state import initial_draft_cache
from tests import tolerances

TOKENS = 130  # beyond the window of 96


@pytest.fixture(scope="module")
def sequence(run):
    ids = jax.random.randint(jax.random.key(0), (TOKENS,), 0, 1792)
    return ids, jax.random.normal(jax.random.key(1), (TOKENS, run.draft_config.tap_width))


def test_the_training_form_is_the_stateful_form(run, draft_model, draft_weights, sequence):
    model = draft_model.merge(draft_weights)
    ids, taps = sequence
    anchors = [0, 1, 50, 95, 96, 97, 129]
    blocks = jax.jit(partial(drafter.hidden_rows, model))(ids, taps, jnp.asarray(anchors))
    empty = initial_draft_cache(run.draft_config, 512, jnp.float32)
    assert empty.positions.shape == (96,)  # a ring that is overwritten
    stateful = jax.jit(lambda anchor, valid: model.hidden(anchor, model.extend(taps, empty, valid)))
    for block, anchor in zip(blocks, anchors, strict=True):
        expected = stateful(ids[anchor], anchor)
        np.testing.assert_allclose(block, expected, atol=tolerances.DRAFT_GOLDEN)


def make_batch(run, lengths, anchors):
    keys = jax.random.split(jax.random.key(4), 3)
    count, d = len(lengths), run.draft_config
    return drafter.Batch(
        jax.random.randint(keys[0], (count, 40), 0, 1792),
        jnp.asarray(lengths),
        jax.random.normal(keys[1], (count, 40, d.tap_width)),
        jax.random.normal(keys[2], (count, 40, d.hidden_size)).astype(jnp.bfloat16),
        jnp.asarray(anchors),
    )


@pytest.fixture(scope="module")
def loss(run, draft_model):
    """(weights, batch) -> loss and metrics, compiled."""
    compute = partial(
        drafter.loss, model=draft_model, config=run.draft_config, recipe=SMOKE.drafter
    )
    return jax.jit(lambda weights, batch: compute(weights, batch, weights["lm_head.weight"]))


def test_rows_beyond_the_end_do_not_count(run, draft_weights, loss):
    batch = make_batch(run, [22, 40], [[18, 20], [30, 10]])
    beyond = batch._replace(
        ids=batch.ids.at[0, 22:].set(3), hidden=batch.hidden.at[0, 21:].set(1.0)
    )
    within = batch._replace(hidden=batch.hidden.at[0, 20:].set(1.0))
    one, two, three = (float(loss(draft_weights, b)[0]) for b in (batch, beyond, within))
    assert one == pytest.approx(two, rel=1e-6)
    assert one != pytest.approx(three, rel=1e-6)


def test_a_drafter_that_is_always_right_accepts_everything(run, draft_weights, loss):
    """If the head ignores the hidden rows, so that both always choose one token, all drafts hit."""
    batch = make_batch(run, [40, 40], [[3, 20], [30, 10]])
    constant = {**draft_weights, "markov_head.markov_w2.weight": jnp.zeros((2048, 16))}
    constant["lm_head.weight"] = jnp.zeros_like(draft_weights["lm_head.weight"])
    total, aux = loss(constant, batch)
    assert aux["hits"].tolist() == [1, 1, 1, 1]
    assert float(aux["accepted"]) == run.draft_config.block_size
    assert float(total) == pytest.approx(
        np.log(2048) + SMOKE.drafter.confidence * float(aux["confidence"]), rel=1e-5
    )


def test_anchors_lie_between_prompt_and_end():
    teacher = drafter.Teacher(
        jnp.zeros((2, 40), int), jnp.array([5, 38]), jnp.array([12, 40]),
        jnp.zeros((2, 40, 1)), jnp.zeros((2, 40, 1)),
    )  # fmt: skip
    draw = jax.jit(lambda key: drafter.draw(teacher, SMOKE.drafter, key))
    for seed in range(20):
        batch = draw(jax.random.key(seed))
        for length, anchors in zip(batch.lengths, batch.anchors, strict=True):
            low, high = (5, 10) if length == 12 else (38, 38)
            assert low <= anchors.min() and anchors.max() <= high
