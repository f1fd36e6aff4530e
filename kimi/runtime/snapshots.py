"""Conversations that go on without being read again.

The recurrent state of a sequence cannot be rolled back to an earlier token, but it can be kept at
some: a snapshot is a copy of everything that later tokens overwrite, the KDA records, the drafter's
ring, and the taps of rows that it has not committed yet. The latents of MLA layers are written once
and stay where they are, so that all snapshots of a conversation share one cache: one is valid as
long as the positions before it still hold its own tokens.

A prompt continues the longest snapshot whose tokens it begins with; nothing in between is ever
guessed. `snapshot_bytes` says what one costs: for Kimi K3 on 32 ranks 24.9 MB of each rank, beside
a cache of 3.6 GB for 131,072 tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from kimi.errors import InputError
from kimi.kernels.chip import SUBLANES, WORD_BYTES
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.plan import Plan
from kimi.kernels.refs import state_shapes
from kimi.runtime.blocks import BlockPrograms
from kimi.runtime.state import DecodeState


def snapshot_bytes(plan: Plan, draft: DraftPlan) -> int:
    """HBM bytes of a snapshot on one rank: KDA records, the drafter's ring, pending taps."""
    records, _ = state_shapes(plan)["kda"]
    taps = (len(plan.settings.taps), SUBLANES, plan.layout.config.hidden_size)
    return WORD_BYTES * sum(math.prod(s) for s in (records, draft.cache.shape, taps))


@dataclass(frozen=True)
class _Snapshot:
    """A place in a conversation.

    Attributes:
      tokens: that the target has seen, those kept of its last step included.
      state: without a cache.
    """

    tokens: tuple[int, ...]
    state: DecodeState


class Conversation:
    """One sequence over several turns.

        conversation = Conversation(programs)
        state, cached = conversation.resume(prompt)     # reads what no snapshot covers
        ...                                             # programs.run(state, ..), any number
        conversation.save(state, prompt + generated)    # at the end of the turn

    `resume` gives the state away and `save` takes it back: one turn at a time.

    Args:
      programs: of one sequence.
      limit: snapshots to keep; the oldest goes first.

    Raises:
      InputError: a limit below 1.
    """

    def __init__(self, programs: BlockPrograms, limit: int = 4):
        if limit < 1:
            raise InputError(f"snapshots: expected a limit of at least 1, found {limit}")
        self._programs, self._limit = programs, limit
        self._snapshots: list[_Snapshot] = []
        self._cache: jax.Array | None = None

    def resume(self, prompt: Sequence[int]) -> tuple[DecodeState, int]:
        """The state behind a prompt, and how many of its tokens a snapshot covered.

        The last token of the prompt is always new: it is the state's newest, which the target has
        not seen.

        Raises:
          InputError: an empty prompt.
        """
        if not prompt:
            raise InputError("prompt: expected at least one token, found none")
        found = self._longest(prompt)
        if found is None or self._cache is None:
            self._snapshots, cached = [], 0
            state = self._programs.empty()
        else:
            # What lies behind this place in the cache is overwritten from now on.
            kept = len(found.tokens)
            self._snapshots = [s for s in self._snapshots if len(s.tokens) <= kept]
            state, cached = replace(_copy(found.state), cache=self._cache), kept
        self._cache = None
        return self._programs.feed(state, np.asarray(prompt[cached:], np.int32)), cached

    def save(self, state: DecodeState, tokens: Sequence[int]) -> None:
        """Keeps the end of a turn; the state must not be used afterwards.

        Args:
          tokens: of the whole sequence, the newest included.

        Raises:
          InputError: the state is of a sequence of another length.
        """
        seen = int(state.lengths[0]) + int(state.kept)
        if seen != len(tokens) - 1:
            raise InputError(
                f"snapshot: expected a state behind {len(tokens) - 1} tokens and the newest, found "
                f"one behind {seen}"
            )
        self._cache = state.cache
        # An array without elements stands for the cache, which is not part of a snapshot.
        rest = replace(state, cache=jnp.zeros((), jnp.uint32))
        self._snapshots.append(_Snapshot(tuple(tokens[:seen]), rest))
        del self._snapshots[: -self._limit]

    def _longest(self, prompt: Sequence[int]) -> _Snapshot | None:
        usable = (
            s for s in self._snapshots
            if len(s.tokens) < len(prompt) and list(s.tokens) == list(prompt[: len(s.tokens)])
        )  # fmt: skip
        return max(usable, key=lambda s: len(s.tokens), default=None)


def _copy(state: DecodeState) -> DecodeState:
    """Calls donate the state that they are given: a snapshot is used more than once."""
    copied: DecodeState = jax.tree.map(jnp.copy, state)
    return copied
