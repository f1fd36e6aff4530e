"""Conversations that continue without being read again.

The recurrent state of a sequence cannot be rolled back to an earlier token, but it can be kept at
some: a snapshot is a copy of everything that later tokens overwrite, the recurrent states, the
drafter's KV cache, and with the kernels the taps of rows that the drafter has not read yet. The
latents of MLA layers are written once and stay where they are, so that all snapshots of a
conversation share them: one is valid as long as the positions before it still hold its own tokens.

A prompt continues the longest snapshot whose tokens it begins with; nothing in between is ever
guessed. `runtime.backend.snapshot_bytes` says what one costs: for Kimi K3 on 32 ranks 24.9 MB of
each rank, beside a cache of 3.6 GB for 131,072 tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from kimi.decoding.programs import Programs
from kimi.decoding.state import DecodeState
from kimi.errors import InputError


@dataclass(frozen=True)
class _Snapshot:
    """A place in a conversation.

    Attributes:
      tokens: that the target has seen, those kept of its last step included.
      state: without the latents.
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

    def __init__(self, programs: Programs, limit: int = 4):
        if limit < 1:
            raise InputError(f"snapshots: expected a limit of at least 1, found {limit}")
        self._programs, self._limit = programs, limit
        self._snapshots: list[_Snapshot] = []
        self._latents: list[Array] | None = None

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
        if found is None or self._latents is None:
            self._snapshots, cached = [], 0
            state = self._programs.backend.empty()
        else:
            # What lies behind this place in the cache is overwritten from now on.
            kept = len(found.tokens)
            self._snapshots = [s for s in self._snapshots if len(s.tokens) <= kept]
            state, cached = _copy(found.state), kept
            state = replace(state, caches=state.caches.attach(self._latents))
        self._latents = None
        return self._programs.prefill(state, 0, prompt[cached:]), cached

    def save(self, state: DecodeState, tokens: Sequence[int]) -> None:
        """Keeps the end of a turn; the state must not be used afterwards.

        Args:
          tokens: of the whole sequence, the newest included.

        Raises:
          InputError: the state is of a sequence of another length.
        """
        seen = int(state.positions[0])
        if seen != len(tokens) - 1:
            raise InputError(
                f"snapshot: expected a state behind {len(tokens) - 1} tokens and the newest, found "
                f"one behind {seen}"
            )
        caches, self._latents = state.caches.detach()
        rest = replace(state, caches=caches)
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
