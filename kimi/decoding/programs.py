"""The compiled programs of a backend: prefill in chunks, and steps of the decoding loop."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from kimi.decoding.backend import Backend
from kimi.decoding.loop import Loop
from kimi.decoding.requests import Request, Steps
from kimi.decoding.state import DecodeState

Run = Callable[[Any, DecodeState, Request], tuple[DecodeState, tuple[Request, Steps]]]


class Programs:
    """The programs of a number of sequences.

    Args:
      backend: of the model.
      steps: of a call, at most. More hide the host better, fewer stream sooner.
    """

    def __init__(self, backend: Backend, steps: int):
        self.backend, self.steps = backend, steps
        self.compiled_prefill = backend.compile("prefill", backend.prefill, 3)
        self._runs: dict[tuple[bool, tuple[int, ...]], Run] = {}

    def start(self, prompts: Sequence[Sequence[int]]) -> DecodeState:
        """The state behind prompts of 1 token or more, of any lengths, one a sequence."""
        state = self.backend.empty()
        for sequence, prompt in enumerate(prompts):
            state = self.prefill(state, sequence, prompt)
        return state

    def prefill(self, state: DecodeState, sequence: int, tokens: Sequence[int]) -> DecodeState:
        """A sequence consumes all tokens but the last, which becomes its newest.

        In chunks: every size of a chunk is compiled once. The state is donated.
        """
        backend = self.backend
        state = backend.place(state)
        ids = np.asarray(tokens, np.int32)
        for padded, count in chunks(ids[:-1], backend.chunk_sizes):
            state = self.compiled_prefill(
                backend.weights, state, np.int32(sequence), padded, np.int32(count)
            )
        newest, stopped = np.array(state.tokens), np.array(state.stopped)
        newest[sequence], stopped[sequence] = ids[-1], False
        return backend.place(
            replace(state, tokens=jax.device_put(newest), stopped=jax.device_put(stopped))
        )

    def run(
        self, state: DecodeState, request: Request, greedy: bool, rows: frozenset[int]
    ) -> tuple[DecodeState, Request, Steps]:
        """Up to `steps` steps; the state is donated.

        Args:
          greedy: whether no sequence of the request is sampled.
          rows: numbers of rows that the request may choose, see `requests.row_counts`.

        Returns: the state, the request of the next call, and what the steps did.

        Raises:
          InputError: the state has been donated before.
        """
        state, (request, steps) = self.compiled(greedy, rows)(self.backend.weights, state, request)
        return state, request, steps

    def compiled(self, greedy: bool, rows: frozenset[int]) -> Run:
        """What `run` calls: a jitted function of the weights, the state and the request."""
        widths = self.backend.widths(rows)
        key = greedy, widths
        if key not in self._runs:
            loop = Loop(self.backend, greedy, widths, self.steps)
            name = f"{'greedy' if greedy else 'sampled'}_{'_'.join(map(str, widths))}_{self.steps}"
            extra = Request(*[0] * 10), Steps(*[0] * 9)  # type: ignore[arg-type]
            self._runs[key] = self.backend.compile(name, loop.run, 1, extra)
        return self._runs[key]


def split(tokens: int, sizes: tuple[int, ...]) -> list[int]:
    """The chunks of so many tokens: the largest size while it is full, then the least that does.

    A chunk costs mostly what all experts' weights cost: fewer chunks with padding win.
    """
    whole, rest = divmod(tokens, sizes[-1])
    last = [next(s for s in sizes if s >= rest)] if rest else []
    return [sizes[-1]] * whole + last


def chunks(
    tokens: npt.NDArray[np.int32], sizes: tuple[int, ...]
) -> Iterator[tuple[npt.NDArray[np.int32], int]]:
    """Tokens [N] chunk by chunk: padded to its size, and how many of it are valid."""
    done = 0
    for size in split(len(tokens), sizes):
        part = tokens[done : done + size]
        yield np.pad(part, (0, size - len(part))), len(part)
        done += size
