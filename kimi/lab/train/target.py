"""Training of the target: next-token prediction on prose and generated text."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array, lax

from kimi.config import ModelConfig
from kimi.lab.train import hooks, loop, packing
from kimi.lab.train.recipe import TargetRecipe
from kimi.lab.train.rounding import all_stored, straight_through
from kimi.lab.train.run import Run
from kimi.lab.train.samples import generated_rows
from kimi.lab.train.weights import save_model
from kimi.reference.loading import Template
from kimi.reference.model import K3
from kimi.reference.numerics import Precision
from kimi.reference.state import initial_state
from kimi.reference.tensors import Weights, tensor_name

_BIAS = "layers.{}.block_sparse_moe.gate.e_score_correction_bias"
_SEED = 1


class Pool(NamedTuple):
    """What batches are drawn from, on the device.

    Attributes:
      prose: [T] uint16 training ids.
      rows: [N, tokens + 1] uint16 generated rows.
      weights: [N, tokens + 1] uint8 their loss weights, `packing.FULL_WEIGHT` is 1.
    """

    prose: Array
    rows: Array
    weights: Array


class Batch(NamedTuple):
    """Rows of one step, prose first: ids [B, tokens + 1], loss weights, dropout rates [B]."""

    ids: Array
    weights: Array
    dropout: Array


def template(config: ModelConfig, precision: Precision) -> Template[K3]:
    """The model as it is trained."""
    return Template(lambda: K3(config, precision, nnx.Rngs(_SEED)))


def draw(pool: Pool, recipe: TargetRecipe, key: Array) -> Batch:
    """A random batch."""
    length, prose_rows = recipe.tokens + 1, recipe.prose_rows
    starts, chosen = jax.random.split(key)
    start = jax.random.randint(starts, (prose_rows,), 0, len(pool.prose) - length)
    prose = jax.vmap(lambda at: lax.dynamic_slice(pool.prose, (at,), (length,)))(start)
    row = jax.random.randint(chosen, (recipe.batch - prose_rows,), 0, len(pool.rows))
    generated = pool.weights[row].astype(jnp.float32) / packing.FULL_WEIGHT
    return Batch(
        jnp.concatenate([prose, pool.rows[row]]).astype(jnp.int32),
        jnp.concatenate([jnp.ones(prose.shape), generated]),
        jnp.where(jnp.arange(recipe.batch) < prose_rows, recipe.dropout, 0.0),
    )


def forward(
    model: Template[K3], config: ModelConfig, weights: Weights, batch: Batch, key: Array
) -> tuple[Array, Array]:
    """Logits [B, tokens, vocab], and expert ids [MoE layers, B, tokens, k]."""

    def row(ids: Array, rate: Array, key: Array) -> tuple[Array, Array]:
        merged = model.merge(weights)
        seen = hooks.record_routing(merged)
        hooks.add_dropout(merged, key, rate)
        tokens = ids[:-1]
        out = merged(tokens, initial_state(config, len(tokens), jnp.float32))
        return merged.logits(out.hidden), jnp.stack(seen)

    keys = jax.random.split(key, len(batch.ids))
    return jax.vmap(row, out_axes=(0, 1))(batch.ids, batch.dropout, keys)


def loss(
    weights: Weights,
    batch: Batch,
    quantise: Array,
    key: Array,
    *,
    model: Template[K3],
    config: ModelConfig,
    recipe: TargetRecipe,
) -> tuple[Array, dict[str, Array]]:
    """Weighted cross-entropy and log-normaliser penalty; the parts for the log.

    `load` in the second result is [MoE layers, E]: the share of tokens that chose each expert
    (their sum is k).
    """
    logits, routed = forward(model, config, straight_through(weights, quantise), batch, key)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.ids[:, 1:])
    share = batch.weights[:, 1:]

    def mean(rows: slice) -> Array:
        return (losses[rows] * share[rows]).sum() / share[rows].sum()

    penalty = recipe.z_loss * jnp.mean(jax.nn.logsumexp(logits, -1) ** 2)
    counts = jax.nn.one_hot(routed, config.num_experts).sum((1, 2, 3))
    aux = {
        "prose": mean(slice(recipe.prose_rows)),
        "chat": mean(slice(recipe.prose_rows, None)),
        "load": counts / (batch.ids.shape[0] * recipe.tokens),
    }
    return mean(slice(None)) + penalty, aux


def balance(weights: Weights, load: Array, rate: Array, config: ModelConfig) -> Weights:
    """Raises the router's bias of experts below the mean load and lowers the others by `rate`."""
    moe_layers = [i for i in range(config.num_hidden_layers) if config.is_moe(i)]
    moved = {
        name: weights[name] + rate * jnp.sign(row.mean() - row)
        for name, row in zip(map(_BIAS.format, moe_layers), load, strict=True)
    }
    return {**weights, **moved}


def make_advance(
    model: Template[K3], config: ModelConfig, recipe: TargetRecipe
) -> Callable[[loop.Carry, loop.Block, Pool], tuple[loop.Carry, loop.Metrics]]:
    """The compiled block of steps: (carry, block, pool) -> (carry, metrics)."""
    tx = loop.optimiser(recipe.weight_decay)
    compute = partial(loss, model=model, config=config, recipe=recipe)

    @partial(jax.jit, donate_argnums=0)
    def advance(
        carry: loop.Carry, block: loop.Block, pool: Pool
    ) -> tuple[loop.Carry, loop.Metrics]:
        quantise = (block.fraction >= recipe.quantise_from).astype(jnp.float32)

        def step(carry: loop.Carry, x: tuple[Array, Array]) -> tuple[loop.Carry, dict[str, Array]]:
            number, rate = x
            drawing, dropping = jax.random.split(jax.random.fold_in(jax.random.key(_SEED), number))
            batch = draw(pool, recipe, drawing)
            (total, aux), grads = jax.value_and_grad(compute, has_aux=True)(
                carry.weights, batch, quantise, dropping
            )
            carry = loop.apply(carry, grads, tx, rate)
            weights = balance(carry.weights, aux["load"], rate, config)
            metrics = {"loss": total, "prose": aux["prose"], "chat": aux["chat"]}
            metrics |= {"busiest": aux["load"].max(), "idlest": aux["load"].min()}
            return loop.Carry(weights, carry.moments), metrics

        return lax.scan(step, carry, (block.steps, block.rates))

    return advance


def make_row_losses(model: Template[K3], config: ModelConfig) -> Callable[[Weights, Array], Array]:
    """The compiled mean loss of each row: weights, ids [B, tokens + 1] -> [B] nats a token."""

    def one(weights: Weights, ids: Array) -> Array:
        merged, tokens = model.merge(weights), ids[:-1]
        out = merged(tokens, initial_state(config, len(tokens), jnp.float32))
        logits = merged.logits(out.hidden)
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[1:]).mean()

    return jax.jit(jax.vmap(one, in_axes=(None, 0)))


def train(run: Run) -> None:
    """Trains and writes `run.target_file`."""
    recipe, config = run.recipe.target, run.config
    start = time.monotonic()
    rows, row_weights = generated_rows(
        recipe.pool, recipe.tokens + 1, run.template, run.recipe.workers
    )
    print(f"target: {len(rows)} rows made in {time.monotonic() - start:.0f} s", flush=True)
    pool = Pool(jnp.asarray(run.prose.train), jnp.asarray(rows), jnp.asarray(row_weights))
    model = template(config, run.recipe.precision)
    weights = model.initial()
    carry = loop.Carry(weights, loop.optimiser(recipe.weight_decay).init(weights))
    advance = make_advance(model, config, recipe)
    row_losses, round_all = make_row_losses(model, config), jax.jit(all_stored)
    held_out = jnp.asarray(packing.split_rows(run.prose.val, recipe.tokens + 1, recipe.validation))

    def describe(metrics: loop.Metrics, carry: loop.Carry) -> str:
        validation = float(row_losses(round_all(carry.weights), held_out).mean())
        m = {name: np.asarray(x) for name, x in metrics.items()}
        return (
            f"loss {m['loss'].mean():.3f} (prose {m['prose'].mean():.3f}, chat "
            f"{m['chat'].mean():.4f}), held-out prose {validation:.4f}, "
            f"expert load {m['idlest'].min():.3f} to {m['busiest'].max():.2f}"
        )

    task = loop.Task(
        "target", recipe.budget, recipe.block, lambda c, b: advance(c, b, pool), describe
    )
    carry = loop.train(task, carry, run.recipe, run.state_file("target"))
    save_model(model.merge(round_all(carry.weights)), run.target_file, tensor_name)
    run.state_file("target").unlink(missing_ok=True)
