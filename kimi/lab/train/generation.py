"""Continuing many prompts at once, token by token, by the reference model's own step."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from kimi.config import ModelConfig
from kimi.lab.train import hooks
from kimi.lab.train.samples import padded
from kimi.reference.loading import Template
from kimi.reference.model import K3
from kimi.reference.state import ModelState, initial_state, rollback
from kimi.reference.tensors import Weights


class Sequences(NamedTuple):
    """Prompts and their continuations.

    Attributes:
      ids: [N, T] int32, filled up with the pad id.
      prompts: [N] int32 lengths of the prompts.
      lengths: [N] int32 whole lengths, the stop id included.
    """

    ids: NDArray[np.int32]
    prompts: NDArray[np.int32]
    lengths: NDArray[np.int32]


class Generator:
    """Continues batches of prompts.

    Args:
      model: the target without weights; its precision is used.
      config: of the target.
      stop_ids: ids that end a sequence; must hold the pad id.
      pad: id that fills ended sequences up.
    """

    def __init__(
        self, model: Template[K3], config: ModelConfig, stop_ids: frozenset[int], pad: int
    ):
        self._stops = jnp.asarray(sorted(stop_ids))
        self._pad = pad
        self._run = jax.jit(partial(_generate, model, config, self._stops, pad))

    def __call__(
        self,
        weights: Weights,
        prompts: Sequence[Sequence[int]],
        length: int,
        *,
        temperature: NDArray[np.float32] | None = None,
        seed: int = 0,
    ) -> Sequences:
        """Continues until a stop id or until `length` tokens, prompt included.

        Args:
          weights: of the target.
          prompts: token ids, at least one each; cut to `length`.
          length: most tokens of a sequence.
          temperature: [N] float32, 0 for greedy; default greedy.
          seed: of the sampling.
        """
        ids, lengths = padded(prompts, length, self._pad)
        if temperature is None:
            temperature = np.zeros(len(ids), np.float32)
        out = np.asarray(self._run(weights, ids, lengths, temperature, jax.random.key(seed)))
        position = np.arange(length)
        ended = np.isin(out, np.asarray(self._stops)) & (position >= lengths[:, None])
        whole = np.where(ended.any(1), ended.argmax(1) + 1, length).astype(np.int32)
        return Sequences(out, lengths, whole)


def _generate(
    model: Template[K3],
    config: ModelConfig,
    stops: Array,
    pad: int,
    weights: Weights,
    ids: Array,
    lengths: Array,
    temperature: Array,
    key: Array,
) -> Array:
    """ids [N, T] with prompts of `lengths` [N] -> ids with continuations [N, T]."""
    count, total = ids.shape

    def row(token: Array, state: ModelState) -> tuple[Array, ModelState]:
        merged = model.merge(weights)
        hooks.run_all_experts(merged)
        out = merged.rows(token[None], state)
        return merged.logits(out.hidden[0]), rollback(out.state, state.length, jnp.int32(1))

    def step(
        carry: tuple[ModelState, Array, Array], position: Array
    ) -> tuple[tuple[ModelState, Array, Array], Array]:
        states, token, done = carry
        logits, states = jax.vmap(row)(token, states)
        drawn = jax.random.categorical(
            jax.random.fold_in(key, position), logits / jnp.maximum(temperature, 1e-3)[:, None]
        )
        new = jnp.where(temperature > 0, drawn, logits.argmax(-1)).astype(jnp.int32)
        new = jnp.where(done, pad, new)
        generated = position + 1 >= lengths
        new = jnp.where(generated, new, ids[:, position + 1])
        done |= generated & jnp.isin(new, stops)
        return (states, new, done), new

    one = initial_state(config, total, jnp.float32)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), one)
    carry = (states, ids[:, 0], jnp.zeros(count, bool))
    _, new = lax.scan(step, carry, jnp.arange(total - 1))
    return jnp.concatenate([ids[:, :1], new.T], 1)
