"""Drafted decoding as a pure function with explicit state, for a caller's own `jax.jit`."""

from collections.abc import Sequence

import jax
import numpy as np

from kimi.decoding.engine import check_request
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import Schedule
from kimi.runtime.blocks import BlockPrograms, Request, Steps
from kimi.runtime.model import ModelWeights
from kimi.runtime.requests import allows_singles, drafted_request, row_costs
from kimi.runtime.state import DecodeState, require_usable


class DecodeFunction:
    """Steps of draft, verify, accept and roll back, all on device.

        decode = engine.decode_function(1024)
        state = decode.start(ids)
        run = jax.jit(decode, donate_argnums=1)
        state, done = run(decode.weights, state, decode.request(max_tokens=64))
        decode.tokens(done)

    A call makes up to `steps` steps. The newest token of the state is the last one emitted, so that
    the next call goes on where this one ended. Called outside of `jax.jit` it is compiled all the
    same, and donates its state.

    Args:
      programs: of one sequence.
      sampling: whether it is greedy is compiled in; its numbers go into every request.
      schedule: how many drafted rows a step verifies.

    Attributes:
      weights: of all ranks, the target's and the drafter's; see `runtime.model.DeviceModel.arrays`.
      steps: of a call.
      capacity: tokens of a sequence at most, prompt included.
    """

    def __init__(
        self, programs: BlockPrograms, capacity: int, sampling: Sampling, schedule: Schedule
    ):
        self._programs, self._sampling = programs, sampling
        self._costs = row_costs(schedule, programs.block)
        self.capacity, self.steps = capacity, programs.steps

    @property
    def weights(self) -> ModelWeights:
        """The first argument."""
        return self._programs.model.arrays

    def start(self, prompt: Sequence[int]) -> DecodeState:
        """The state behind a prompt: all but its last token have been read.

        Raises:
          InputError: no token, an id outside the vocabulary, or no room for one token more.
        """
        check_request(prompt, 1, self._programs.model.config.vocab_size, self.capacity)
        return self._programs.feed(self._programs.empty(), np.asarray(prompt, np.int32))

    def request(
        self, max_tokens: int, *, stop_ids: frozenset[int] = frozenset(), before: int = 0
    ) -> Request:
        """What a call is asked for.

        Args:
          max_tokens: int32, emits at most so many; the caller minds `capacity`.
          stop_ids: end the sequence.
          before: steps of the sequence in earlier calls.
        """
        return drafted_request(max_tokens, stop_ids, self._costs, self._sampling, before=before)

    def __call__(
        self, weights: ModelWeights, state: DecodeState, request: Request
    ) -> tuple[DecodeState, Steps]:
        """Up to `steps` steps.

        Args:
          weights: `weights`, each [ranks, ...].
          state: of `start` or of the call before; shapes and dtypes in `runtime.state.DecodeState`.
          request: see `runtime.blocks.Request`; all of it is traced.

        Returns: the state behind the emitted tokens; what the steps did, `runtime.blocks.Steps`.

        Raises:
          InputError: outside of `jax.jit`: the state has been donated to an earlier call.
        """
        require_usable(state)
        run = self._programs.compiled(self._sampling.greedy, allows_singles(self._costs))
        return run(weights, state, request)

    @staticmethod
    def tokens(done: Steps) -> list[int]:
        """The ids that the steps of a call emitted."""
        done = jax.device_get(done)
        rows = zip(done.tokens[: done.count], done.emitted[: done.count], strict=True)
        return [int(t) for tokens, count in rows for t in tokens[:count]]
