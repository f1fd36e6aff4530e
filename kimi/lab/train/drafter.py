"""Training of the drafter: predicting the target's own continuations, a block at a time."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array, lax

from kimi.config import DraftConfig
from kimi.lab.train import loop, target
from kimi.lab.train.recipe import DrafterRecipe
from kimi.lab.train.rounding import all_stored, straight_through
from kimi.lab.train.run import Run
from kimi.lab.train.teacher import Teacher, watch, write_sequences
from kimi.lab.train.weights import load_model, read_tensors, save_model
from kimi.reference.draft import Dspark
from kimi.reference.loading import Template, weights_of
from kimi.reference.numerics import F32, Precision, matmul
from kimi.reference.state import initial_draft_cache
from kimi.reference.tensors import Weights, draft_tensor_name

_SEED = 5


class Batch(NamedTuple):
    """Sequences of one step, B of them, and A anchors in each.

    Attributes:
      ids: [B, T] int32; lengths: [B] int32.
      taps: [B, T, width]; hidden: [B, T, D], of the target.
      anchors: [B, A] int32 positions.
    """

    ids: Array
    lengths: Array
    taps: Array
    hidden: Array
    anchors: Array


def template(config: DraftConfig, precision: Precision) -> Template[Dspark]:
    """The drafter as it is trained."""
    return Template(lambda: Dspark(config, precision, nnx.Rngs(_SEED)))


def draw(teacher: Teacher, recipe: DrafterRecipe, key: Array) -> Batch:
    """Random sequences, and anchors from the end of the prompt to the last token but one."""
    choosing, placing = jax.random.split(key)
    i = jax.random.randint(choosing, (recipe.batch,), 0, len(teacher.ids))
    first, lengths = teacher.first[i], teacher.lengths[i]
    room = (lengths - 1 - first)[:, None]
    where = jax.random.uniform(placing, (recipe.batch, recipe.anchors))
    anchors = first[:, None] + jnp.floor(where * room).astype(jnp.int32)
    return Batch(teacher.ids[i], lengths, teacher.taps[i], teacher.hidden[i], anchors)


def hidden_rows(drafter: Dspark, ids: Array, taps: Array, anchors: Array) -> Array:
    """Blocks at many anchors of one sequence: [A, K, D].

    The drafter's own `extend` puts the whole sequence into a context with a slot for every token;
    its own `hidden` then sees, for each anchor, only the window before it. Equal to feeding the
    tokens before an anchor and drafting, for every anchor.

    Args:
      drafter: with weights.
      ids: [T] int32.
      taps: [T, width].
      anchors: [A] int32 positions.
    """
    roomy = dataclasses.replace(drafter.config, sliding_window=None)
    context = drafter.extend(taps, initial_draft_cache(roomy, len(ids), drafter_dtype(drafter)))

    def block(anchor: Array) -> Array:
        return drafter.hidden(ids[anchor], dataclasses.replace(context, length=anchor))

    return jax.vmap(block)(anchors)


def drafter_dtype(drafter: Dspark) -> jnp.dtype:
    """The dtype keys and values are rounded to when they are multiplied: kept in it, they are as
    exact and take the least memory."""
    return jnp.dtype(drafter.embed_tokens.precision.matmul)


def loss(
    weights: Weights,
    batch: Batch,
    head: Array,
    *,
    model: Template[Dspark],
    config: DraftConfig,
    recipe: DrafterRecipe,
) -> tuple[Array, dict[str, Array]]:
    """Imitation of the target along its own sequences, and the confidence head's loss.

    Row k of a block is given the true tokens before it, so its teacher is the target's
    distribution at position anchor + k. Rows beyond a sequence's end do not count.

    Args:
      head: [vocab, D] the target's output matrix.
    """
    stored = straight_through(weights, jnp.float32(0))
    rows = jnp.arange(config.block_size)

    def sequence(
        ids: Array, taps: Array, hidden: Array, anchors: Array
    ) -> tuple[Array, Array, Array]:
        drafter = model.merge(stored)
        blocks = hidden_rows(drafter, ids, taps, anchors)
        at = jnp.minimum(anchors[:, None] + rows, len(ids) - 1)
        logits, _, confidence = drafter.heads(blocks, ids[at])
        dtype = drafter.lm_head.precision.matmul
        teacher = matmul(hidden[at].astype(F32), head, dtype)
        return logits, confidence, teacher

    logits, confidence, teacher = jax.vmap(sequence)(
        batch.ids, batch.taps, batch.hidden, batch.anchors
    )
    counts = batch.anchors[..., None] + rows + 1 < batch.lengths[:, None, None]
    best = teacher.argmax(-1)
    hit = ((logits.argmax(-1) == best) & counts).astype(F32)
    hard = optax.softmax_cross_entropy_with_integer_labels(logits, best)
    soft = optax.softmax_cross_entropy(logits, jax.nn.softmax(teacher, -1))
    share = recipe.cross_entropy
    imitation = share * hard + (1 - share) * soft
    discounted = counts * recipe.discount**rows
    sure = optax.sigmoid_binary_cross_entropy(confidence, hit)
    confidence_loss = (sure * counts).sum() / counts.sum()
    total = (imitation * discounted).sum() / discounted.sum()
    usable = hit[..., : config.block_size - 1]  # the last row would not fit a verified block
    aux = {
        "hits": hit.sum((0, 1)) / counts.sum((0, 1)),
        "accepted": 1 + jnp.cumprod(usable, -1).sum(-1).mean(),
        "confidence": confidence_loss,
    }
    return total + recipe.confidence * confidence_loss, aux


def make_advance(
    model: Template[Dspark], config: DraftConfig, recipe: DrafterRecipe
) -> Callable[[loop.Carry, loop.Block, Teacher, Array], tuple[loop.Carry, loop.Metrics]]:
    """The compiled block of steps: (carry, block, teacher, head) -> (carry, metrics)."""
    tx = loop.optimiser(recipe.weight_decay)
    compute = partial(loss, model=model, config=config, recipe=recipe)

    @partial(jax.jit, donate_argnums=0)
    def advance(
        carry: loop.Carry, block: loop.Block, teacher: Teacher, head: Array
    ) -> tuple[loop.Carry, loop.Metrics]:
        def step(carry: loop.Carry, x: tuple[Array, Array]) -> tuple[loop.Carry, dict[str, Array]]:
            number, rate = x
            batch = draw(teacher, recipe, jax.random.fold_in(jax.random.key(_SEED), number))
            (total, aux), grads = jax.value_and_grad(compute, has_aux=True)(
                carry.weights, batch, head
            )
            return loop.apply(carry, grads, tx, rate), {"loss": total, **aux}

        return lax.scan(step, carry, (block.steps, block.rates))

    return advance


def describe(metrics: loop.Metrics, carry: loop.Carry) -> str:
    """A log line."""
    del carry
    m = {name: np.asarray(x).mean(0) for name, x in metrics.items()}
    hits = " ".join(f"{x:.2f}" for x in m["hits"])
    return (
        f"loss {m['loss']:.3f}, hits {hits}, accepted {m['accepted']:.3f} tokens a step, "
        f"confidence loss {m['confidence']:.3f}"
    )


def train(run: Run) -> None:
    """Trains on what the target of `run.target_file` writes; writes `run.drafter_file`."""
    recipe, config, precision = run.recipe.drafter, run.draft_config, run.recipe.precision
    config.check_target(run.config)
    trained = weights_of(load_model(read_tensors(run.target_file), run.config, precision))
    target_model = target.template(run.config, precision)
    sequences = write_sequences(run, target_model, trained)
    teacher = watch(run, config, target_model, trained, sequences)
    model = template(config, precision)
    weights = model.initial()
    # Copies: the loop gives the carry's buffers away.
    weights |= {name: jnp.copy(trained[name]) for name in ("embed_tokens.weight", "lm_head.weight")}
    carry = loop.Carry(weights, loop.optimiser(recipe.weight_decay).init(weights))
    advance = make_advance(model, config, recipe)
    head = trained["lm_head.weight"]
    task = loop.Task(
        "drafter", recipe.budget, recipe.block, lambda c, b: advance(c, b, teacher, head), describe
    )
    carry = loop.train(task, carry, run.recipe, run.state_file("drafter"))
    save_model(model.merge(jax.jit(all_stored)(carry.weights)), run.drafter_file, draft_tensor_name)
    run.state_file("drafter").unlink(missing_ok=True)
