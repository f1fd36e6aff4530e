"""The training loop: compiled blocks of steps against the clock, a log, a state to resume from."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from kimi.errors import InputError
from kimi.lab.train.recipe import Budget, Recipe
from kimi.lab.train.weights import is_matrix, read_tensors, write_tensors
from kimi.reference.tensors import Weights

Metrics = Mapping[str, Array]

_PROGRESS = "progress"  # in a state file: steps done and seconds spent


class Carry(NamedTuple):
    """What a step changes: weights and the state of the optimiser."""

    weights: Weights
    moments: Any


class Block(NamedTuple):
    """What a block of K steps is told.

    Attributes:
      steps: [K] int32 numbers of the steps, from 0; random keys are derived from them, so that a
        resumed run goes on with new data.
      rates: [K] float32 learning rates.
      fraction: [] float32, share of the run that is over.
    """

    steps: Array
    rates: Array
    fraction: Array


@dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
      name: of the log lines.
      budget: schedule.
      block: steps per call of `advance`.
      advance: (carry, block) -> new carry, and metrics with a leading axis of steps. May use the
        carry's buffers up.
      describe: metrics and carry -> the rest of a log line.
    """

    name: str
    budget: Budget
    block: int
    advance: Callable[[Carry, Block], tuple[Carry, Metrics]]
    describe: Callable[[Metrics, Carry], str]


def optimiser(weight_decay: float) -> optax.GradientTransformation:
    """AdamW without its learning rate: the loop multiplies by that."""

    def decays(weights: Weights) -> dict[str, bool]:
        return {name: is_matrix(name, w) for name, w in weights.items()}

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(0.9, 0.95),
        optax.add_decayed_weights(weight_decay, decays),
    )


def apply(carry: Carry, grads: Weights, tx: optax.GradientTransformation, rate: Array) -> Carry:
    """One step of the optimiser."""
    updates, moments = tx.update(grads, carry.moments, carry.weights)
    weights = jax.tree.map(lambda w, u: w - rate * u, carry.weights, updates)
    return Carry(weights, moments)


def train(task: Task, carry: Carry, recipe: Recipe, state_file: Path) -> Carry:
    """Trains until the budget is used up.

    Args:
      task: what to do.
      carry: initial weights and moments; used up.
      recipe: how often to log and save.
      state_file: state of an interrupted run, taken up if it exists; it is saved from time to
        time, and the caller removes it once the result is safe.
    """
    budget, step, before = task.budget, 0, 0.0
    if state_file.exists():
        carry, step, before = _restore(state_file, carry)
        print(f"{task.name}: resumed at step {step} after {before:.0f} s", flush=True)
    start = saved = logged = time.monotonic()
    logged_step, fraction = step, budget.fraction(before, step)
    while fraction < 1:
        block = _block(task, step, fraction)
        carry, metrics = task.advance(carry, block)
        jax.block_until_ready(metrics)
        step += task.block
        now = time.monotonic()
        fraction = budget.fraction(before + now - start, step)
        if fraction >= 1 or now - logged >= recipe.log_every:
            pace = (now - logged) / (step - logged_step) * 1e3
            print(
                f"{task.name} {before + now - start:6.1f} s, step {step}, {pace:.0f} ms a step: "
                f"rate {float(block.rates[-1]):.5f}, {task.describe(metrics, carry)}",
                flush=True,
            )
            logged, logged_step = time.monotonic(), step
        if fraction < 1 and now - saved >= recipe.save_every:
            _save(state_file, carry, step, before + time.monotonic() - start)
            saved = time.monotonic()
    return carry


def _block(task: Task, step: int, fraction: float) -> Block:
    numbers = range(step, step + task.block)
    rates = [task.budget.rate(fraction, number) for number in numbers]
    return Block(jnp.asarray(numbers), jnp.asarray(rates, jnp.float32), jnp.float32(fraction))


def _save(path: Path, carry: Carry, step: int, elapsed: float) -> None:
    leaves, _ = jax.tree_util.tree_flatten_with_path(carry)
    tensors = {jax.tree_util.keystr(key): np.asarray(leaf) for key, leaf in leaves}
    write_tensors(path, tensors | {_PROGRESS: np.array([step, elapsed], np.float64)})


def _restore(path: Path, like: Carry) -> tuple[Carry, int, float]:
    """Raises: InputError if the file is damaged or belongs to another model."""
    tensors = read_tensors(path)
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    expected = {jax.tree_util.keystr(key): leaf.shape for key, leaf in leaves}
    found = {name: value.shape for name, value in tensors.items() if name != _PROGRESS}
    if found != expected or _PROGRESS not in tensors:
        raise InputError(f"{path}: expected the training state of this model, found another one's")
    carry: Carry = jax.tree.unflatten(structure, [jnp.asarray(tensors[name]) for name in expected])
    step, elapsed = tensors[_PROGRESS].tolist()
    return carry, int(step), elapsed
