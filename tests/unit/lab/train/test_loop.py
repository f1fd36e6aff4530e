from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.errors import InputError
from kimi.lab.train import loop
from kimi.lab.train.recipe import SMOKE, Budget

TX = loop.optimiser(0.1)


def start() -> loop.Carry:
    weights = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
    return loop.Carry(weights, TX.init(weights))


@jax.jit
def one_step(carry, step, rate):
    key = jax.random.fold_in(jax.random.key(0), step)
    grads = jax.tree.map(lambda w: jax.random.normal(key, w.shape), carry.weights)
    return loop.apply(carry, grads, TX, rate)


def task(budget: Budget, stop_after: int | None = None) -> loop.Task:
    def advance(carry, block):
        if stop_after is not None and block.steps[0] >= stop_after:
            raise KeyboardInterrupt
        for step, rate in zip(block.steps, block.rates, strict=True):
            carry = one_step(carry, step, rate)
        return carry, {"loss": block.rates}

    return loop.Task("test", budget, 2, advance, lambda metrics, carry: f"{carry.weights['b']}")


BUDGET = Budget(seconds=1e6, peak=0.1, decay=1, warmup=1, steps=6)


def test_an_interrupted_run_ends_like_another(tmp_path, capsys):
    file = tmp_path / "state.safetensors"
    whole = loop.train(task(BUDGET), start(), replace(SMOKE, save_every=1e9), file)
    assert not file.exists()
    with pytest.raises(KeyboardInterrupt):
        loop.train(task(BUDGET, stop_after=4), start(), SMOKE, file)
    resumed = loop.train(task(BUDGET), start(), SMOKE, file)
    assert "resumed at step 4" in capsys.readouterr().out
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_state_of_another_model_is_refused(tmp_path):
    file = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        loop.train(task(BUDGET, stop_after=2), start(), SMOKE, file)
    weights = {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}
    with pytest.raises(InputError, match="expected the training state of this model"):
        loop.train(task(BUDGET), loop.Carry(weights, TX.init(weights)), SMOKE, file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match="expected tensors of an earlier step"):
        loop.train(task(BUDGET), start(), SMOKE, file)


def test_time_ends_a_run(tmp_path):
    done = loop.train(
        task(Budget(seconds=1e-9, peak=1, decay=1, warmup=1)), start(), SMOKE, tmp_path / "state"
    )
    assert int(done.moments[1].count) == 2  # one block was under way when the time was over


def test_matrices_decay_and_vectors_do_not():
    carry = start()
    zero = jax.tree.map(jnp.zeros_like, carry.weights)
    after = loop.apply(carry, zero, TX, jnp.float32(0.5)).weights
    np.testing.assert_allclose(after["w"], 1 - 0.5 * 0.1, rtol=1e-6)
    assert (after["b"] == 1).all()
