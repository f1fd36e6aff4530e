from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.lab.train import target
from kimi.lab.train.recipe import SMOKE
from kimi.reference.state import initial_state
from tests import tolerances

RECIPE = SMOKE.target


@pytest.fixture(scope="module")
def pool(run):
    rows = np.arange(8 * 65).reshape(8, 65).astype(np.uint16)
    weights = np.full(rows.shape, 51, np.uint8)
    return target.Pool(jnp.asarray(run.prose.train), jnp.asarray(rows), jnp.asarray(weights))


@pytest.fixture(scope="module")
def loss(run, target_model):
    """(weights, batch) -> loss and metrics with rounded experts, compiled."""
    compute = partial(target.loss, model=target_model, config=run.config, recipe=RECIPE)
    return jax.jit(lambda w, batch: compute(w, batch, jnp.float32(1), jax.random.key(0)))


def test_batches_put_prose_first(pool, run):
    batch = target.draw(pool, RECIPE, jax.random.key(3))
    prose = RECIPE.prose_rows
    assert batch.ids.shape == batch.weights.shape == (RECIPE.batch, 65)
    text = run.prose.train.tobytes()
    for row in np.asarray(batch.ids[:prose]).astype(np.uint16):
        assert row.tobytes() in text
    assert (batch.ids[prose:, 0] % 65 == 0).all()
    assert (batch.weights[:prose] == 1).all()
    assert np.allclose(batch.weights[prose:], 0.2)
    assert batch.dropout.tolist() == pytest.approx([0.1] * prose + [0] * (RECIPE.batch - prose))


def test_forward_is_the_model_row_by_row(run, target_model, target_weights, pool):
    rates = jnp.array([0.5, 0.5, 0, 0])
    batch = target.draw(pool, RECIPE, jax.random.key(3))._replace(dropout=rates)
    forward = jax.jit(partial(target.forward, target_model, run.config))
    logits, routed = forward(target_weights, batch, jax.random.key(0))
    model = target_model.merge(target_weights)
    state = initial_state(run.config, 64, jnp.float32)
    plain = jax.jit(lambda ids: model.logits(model(ids, state).hidden))
    close = [
        np.allclose(found, plain(ids[:-1]), atol=tolerances.MODEL_ORDERS, rtol=1e-5)
        for found, ids in zip(logits, batch.ids, strict=True)
    ]
    assert close == [False, False, True, True]  # dropout only where there is a rate
    assert routed.shape == (1, RECIPE.batch, 64, run.config.num_experts_per_token)


def test_loss_of_a_fresh_model_is_that_of_guessing(run, fresh_weights, pool, loss):
    batch = target.draw(pool, RECIPE, jax.random.key(3))
    total, aux = loss(fresh_weights, batch)
    guessing = np.log(run.config.vocab_size)
    assert float(aux["prose"]) == pytest.approx(guessing, rel=0.02)
    # The penalty on the log normaliser is all that the total has beyond the two parts' mean.
    prose, chat = float(aux["prose"]) * 2 * 64, float(aux["chat"]) * 2 * 64 * 0.2
    mean = (prose + chat) / (2 * 64 * 1.2)
    assert float(total) == pytest.approx(mean + RECIPE.z_loss * guessing**2, rel=1e-3)
    assert np.allclose(aux["load"].sum(-1), run.config.num_experts_per_token)


def test_unweighted_tokens_do_not_count(target_weights, pool, loss):
    batch = target.draw(pool, RECIPE, jax.random.key(3))._replace(dropout=jnp.zeros(RECIPE.batch))
    silent = batch.weights.at[:, 40:].set(0)
    changed = batch.ids.at[:, 45:].set(5)

    def chat(ids):
        return loss(target_weights, batch._replace(ids=ids, weights=silent))[1]["chat"]

    assert float(chat(batch.ids)) == pytest.approx(float(chat(changed)), rel=1e-6)


def test_balance_moves_the_bias_against_the_load(run, target_weights):
    name = "layers.1.block_sparse_moe.gate.e_score_correction_bias"
    load = jnp.array([[0.9, 0.5, 0.5, 0.1]])
    moved = target.balance(target_weights, load, jnp.float32(0.25), run.config)
    np.testing.assert_allclose(moved[name] - target_weights[name], [-0.25, 0, 0, 0.25], atol=1e-6)
    assert all(moved[n] is w for n, w in target_weights.items() if n != name)
