"""What the drafter learns from: sequences that the target wrote, and the target's view of them."""

import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kimi.config import DraftConfig, ModelConfig
from kimi.lab.train.generation import Generator, Sequences
from kimi.lab.train.run import Run
from kimi.lab.train.samples import conversation_prompts, mixed_prompts
from kimi.reference.loading import Template
from kimi.reference.model import K3
from kimi.reference.state import initial_state
from kimi.reference.tensors import Weights


class Teacher(NamedTuple):
    """Sequences with everything the target says about them, on the device.

    Computing this once instead of in every step is what makes training fast; it takes 4 KB a token.
    bfloat16 loses nothing: the drafter's `fc` and the target's head round their operands to it.

    Attributes:
      ids: [N, T] int32.
      first: [N] int32, the first anchor: the last token of the prompt.
      lengths: [N] int32, whole lengths.
      taps: [N, T, len(taps) * D] bfloat16, the drafter's input.
      hidden: [N, T, D] bfloat16, final-normed.
    """

    ids: Array
    first: Array
    lengths: Array
    taps: Array
    hidden: Array


def observe(
    model: Template[K3], config: ModelConfig, taps: tuple[int, ...], weights: Weights, ids: Array
) -> tuple[Array, Array]:
    """The target's taps [N, T, width] and final hidden rows [N, T, D] of sequences ids [N, T]."""

    def row(ids: Array) -> tuple[Array, Array]:
        merged = model.merge(weights)
        out = merged(ids, initial_state(config, len(ids), jnp.float32))
        return out.taps(taps), out.hidden

    return jax.vmap(row)(ids)


def write_sequences(run: Run, model: Template[K3], weights: Weights) -> Sequences:
    """Lets the target continue training prompts; those that it ends at once are left out."""
    recipe, tokenizer = run.recipe.drafter, run.tokenizer
    chats = conversation_prompts(recipe.sequences, run.template, run.recipe.workers)
    prompts = mixed_prompts(recipe.sequences, chats, run.prose.train, recipe.chat_share)
    greedy = np.random.default_rng(0).random(len(prompts)) < recipe.greedy_share
    temperature = np.where(greedy, 0, 1).astype(np.float32)
    generate = Generator(model, run.config, tokenizer.stop_ids, tokenizer.special.pad)
    start, parts = time.monotonic(), []
    for at in range(0, len(prompts), recipe.at_once):
        part = slice(at, at + recipe.at_once)
        parts.append(
            generate(weights, prompts[part], recipe.tokens, temperature=temperature[part], seed=at)
        )
    ids, first, lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    useful = lengths - first >= 2
    new = (lengths - first).mean()
    print(
        f"drafter: {len(ids)} sequences of {new:.0f} new tokens in the mean, {int(useful.sum())} "
        f"useful, {time.monotonic() - start:.0f} s",
        flush=True,
    )
    return Sequences(ids[useful], first[useful], lengths[useful])


def watch(
    run: Run, draft: DraftConfig, model: Template[K3], weights: Weights, sequences: Sequences
) -> Teacher:
    """Runs the target over the sequences."""
    look = jax.jit(partial(observe, model, run.config, draft.aux_hidden_state_layer_ids))
    count, batch = len(sequences.ids), run.recipe.drafter.batch
    ids = np.resize(sequences.ids, (-(-count // batch) * batch, sequences.ids.shape[1]))
    parts = []
    for at in range(0, len(ids), batch):
        taps, hidden = look(weights, ids[at : at + batch])
        parts.append((taps.astype(jnp.bfloat16), hidden.astype(jnp.bfloat16)))
    taps, hidden = (jnp.concatenate(arrays)[:count] for arrays in zip(*parts, strict=True))
    return Teacher(
        jnp.asarray(sequences.ids),
        jnp.asarray(sequences.prompts - 1),
        jnp.asarray(sequences.lengths),
        taps,
        hidden,
    )
