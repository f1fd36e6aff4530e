"""Acceptance of a drafter on sequences that are already known, without running the decoder.

Greedy speculative decoding emits exactly the target's greedy sequence, so the steps it would take
follow from the sequence itself and from what the drafter proposes at every position.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from kimi.config import DraftConfig, ModelConfig
from kimi.lab.train.drafter import hidden_rows
from kimi.lab.train.generation import Sequences
from kimi.lab.train.teacher import observe
from kimi.reference.draft import Dspark
from kimi.reference.loading import Template
from kimi.reference.model import K3
from kimi.reference.tensors import Weights

_BATCH = 8  # sequences drafted at once: a block for each of their tokens


class Proposals(NamedTuple):
    """Drafts at every position of N sequences.

    Attributes:
      tokens: [N, T, K] int32; row k at position t is about token t + k + 1.
      confidence: [N, T, K] float32 log odds.
    """

    tokens: NDArray[np.int32]
    confidence: NDArray[np.float32]


class Replay(NamedTuple):
    """What the steps of greedy speculative decoding would have been.

    Attributes:
      steps, tokens: totals over all sequences.
      confidence: [R] log odds of every draft that was looked at: those accepted and the first one
        refused in each step, within the sequence.
      accepted: [R] bool, what became of it.
    """

    steps: int
    tokens: int
    confidence: NDArray[np.float64]
    accepted: NDArray[np.bool_]

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a step."""
        return self.tokens / max(self.steps, 1)


class Drafting:
    """Drafts at every position of given sequences.

    Args:
      target, config: the target without weights, and its sizes.
      drafter, draft_config: likewise.
    """

    def __init__(
        self,
        target: Template[K3],
        config: ModelConfig,
        drafter: Template[Dspark],
        draft_config: DraftConfig,
    ):
        taps = draft_config.aux_hidden_state_layer_ids
        self._run = jax.jit(partial(_propose, target, config, taps, drafter))

    def __call__(self, target: Weights, drafter: Weights, ids: NDArray[np.int32]) -> Proposals:
        """ids [N, T] -> drafts at all positions."""
        parts = [
            self._run(target, drafter, ids[at : at + _BATCH]) for at in range(0, len(ids), _BATCH)
        ]
        tokens, confidence = (np.concatenate(x) for x in zip(*parts, strict=True))
        return Proposals(tokens, confidence)


def replay(sequences: Sequences, proposals: Proposals) -> Replay:
    """Walks through greedy sequences; a step verifies the anchor and all drafts but the last."""
    usable = proposals.tokens.shape[-1] - 1
    steps = tokens = 0
    confidence: list[float] = []
    accepted: list[bool] = []
    for row, ids in enumerate(sequences.ids):
        anchor, end = int(sequences.prompts[row]) - 1, int(sequences.lengths[row])
        while anchor < end - 1:
            drafts = proposals.tokens[row, anchor, :usable]
            truth = ids[anchor + 1 : end][:usable]
            agreed = _agreement(drafts[: len(truth)], truth)
            seen = min(agreed + 1, len(truth))
            confidence += proposals.confidence[row, anchor, :seen].tolist()
            accepted += [k < agreed for k in range(seen)]
            steps += 1
            tokens += min(agreed + 1, end - 1 - anchor)
            anchor += agreed + 1
    return Replay(steps, tokens, np.array(confidence), np.array(accepted, bool))


def _agreement(drafts: NDArray[np.int32], truth: NDArray[np.int32]) -> int:
    """Length of the common beginning of two rows of one length."""
    return int(np.cumprod(drafts == truth).sum())


def _propose(
    target: Template[K3],
    config: ModelConfig,
    taps: tuple[int, ...],
    drafter: Template[Dspark],
    target_weights: Weights,
    drafter_weights: Weights,
    ids: Array,
) -> tuple[Array, Array]:
    seen, _ = observe(target, config, taps, target_weights, ids)

    def sequence(ids: Array, taps: Array) -> tuple[Array, Array]:
        model = drafter.merge(drafter_weights)
        blocks = hidden_rows(model, ids, taps, jnp.arange(len(ids)))  # [T, K, D]

        def row(previous: Array, hidden: Array) -> tuple[Array, tuple[Array, Array]]:
            logits, _, confidence = model.heads(hidden, previous)
            best = logits.argmax(-1).astype(jnp.int32)
            return best, (best, confidence)

        _, (tokens, confidence) = jax.lax.scan(row, ids, jnp.swapaxes(blocks, 0, 1))
        return tokens.T, confidence.T

    return jax.vmap(sequence)(ids, seen)
