"""Drafted decoding as a pure function with explicit state, for a caller's own `jax.jit`."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kimi.decoding.engine import check_request, check_stop_ids
from kimi.decoding.sampling import INT32_MAX, Sampling
from kimi.decoding.schedule import Schedule
from kimi.errors import InputError
from kimi.progress import announced
from kimi.runtime.blocks import STOP_IDS, BlockPrograms, Request, Steps
from kimi.runtime.decoder import require_finite
from kimi.runtime.model import ModelWeights
from kimi.runtime.requests import allows_singles, drafted_request, row_costs
from kimi.runtime.state import DecodeState, state_shapes_of
from kimi.values import integer, shown


class DecodeFunction:
    """Steps of draft, verify, accept and roll back, all on device.

        decode = engine.decode_function(1024)
        state = decode.start(ids)
        run = jax.jit(decode, donate_argnums=1)
        state, done = run(decode.weights, state, decode.request(max_tokens=64))
        decode.tokens(done)

    A call makes up to `steps` steps. The newest token of the state is the last one emitted, so that
    the next call goes on where this one ended; behind a stop id it emits nothing. `done.finished`
    says whether a call has emitted all that it was asked for. Called outside of `jax.jit` it is
    compiled all the same, and donates its state.

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
        self._compiled = jax.jit(self._call, donate_argnums=1)

    def __repr__(self) -> str:
        return (
            f"DecodeFunction(capacity={self.capacity}, steps={self.steps}, "
            f"block_size={self._programs.block}, {self._sampling})"
        )

    @property
    def weights(self) -> ModelWeights:
        """The first argument."""
        return self._programs.model.arrays

    def start(self, prompt: Sequence[int]) -> DecodeState:
        """The state behind a prompt: all but its last token have been read.

        Raises:
          InputError: no token, an id outside the vocabulary, or no room for one token more.
        """
        ids, _ = check_request(prompt, 1, self._programs.model.config.vocab_size, self.capacity)
        with announced("compiling and reading the prompt"):
            return self._programs.feed(self._programs.empty(), np.asarray(ids, np.int32))

    def request(
        self, max_tokens: int | Array, *, stop_ids: frozenset[int] = frozenset(),
        before: int | Array = 0,
    ) -> Request:  # fmt: skip
        """What a call is asked for.

        Args:
          max_tokens: int32, emits at most so many; the caller minds `capacity`.
          stop_ids: at most 16, end the sequence.
          before: steps of the sequence in earlier calls.

        Raises:
          InputError: a value out of range; traced ones are not looked at.
        """
        max_tokens = _count("max tokens", max_tokens, self.capacity)
        before = _count("before", before, INT32_MAX)
        stop_ids = check_stop_ids(stop_ids, self._programs.model.config.vocab_size, STOP_IDS)
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
          InputError: another state or request than this function's, or a state that has been used
            up by an earlier call.
        """
        self._require(state, request)
        with announced("compiling"):
            found: tuple[DecodeState, Steps] = self._compiled(weights, state, request)
        return found

    def _call(
        self, weights: ModelWeights, state: DecodeState, request: Request
    ) -> tuple[DecodeState, Steps]:
        # Behind a prompt no rows are kept: its last token may be a stop id, and ends nothing.
        ended = (state.kept > 0) & (state.tokens == request.stop_ids).any()
        request = replace(request, left=jnp.where(ended, 0, request.left))
        run = self._programs.compiled(self._sampling.greedy, allows_singles(self._costs))
        state, done = run(weights, state, request)
        return state, replace(done, stopped=done.stopped | ended)

    def _require(self, state: DecodeState, request: Request) -> None:
        """Raises InputError, see `__call__`."""
        if not isinstance(state, DecodeState):
            raise InputError(f"state: expected a DecodeState, found {shown(state)}")
        if not isinstance(request, Request):
            raise InputError(f"request: expected a Request, found {shown(request)}")
        wanted = state_shapes_of(self._programs.plan, self._programs.draft)
        for name, shape in vars(wanted).items():
            found = getattr(state, name)
            if found is None or (found.shape, found.dtype) != (shape.shape, shape.dtype):
                raise InputError(
                    f"state: {name}: expected {shape.dtype}{list(shape.shape)}, found "
                    f"{found if found is None else f'{found.dtype}{list(found.shape)}'}: was it "
                    "made by another decode function?"
                )

    @staticmethod
    def tokens(done: Steps) -> list[int]:
        """The ids that the steps of a call emitted.

        Raises:
          InputError: no steps, or traced ones.
          NumericsError: the model's logits were not finite.
        """
        if not isinstance(done, Steps):
            raise InputError(f"steps: expected the Steps of a call, found {shown(done)}")
        if any(isinstance(array, jax.core.Tracer) for array in vars(done).values()):
            raise InputError("steps: expected values, found traced ones: read them outside jax.jit")
        if any(isinstance(a, jax.Array) and a.is_deleted() for a in vars(done).values()):
            raise InputError("steps: expected those of a call, found ones donated to another call")
        done = jax.device_get(done)
        require_finite(bool(done.finite))
        rows = zip(done.tokens[: done.count], done.emitted[: done.count], strict=True)
        return [int(t) for tokens, count in rows for t in tokens[:count]]


def _count(name: str, value: int | Array, high: int) -> int | Array:
    """A number up to `high`, or a traced one as it is. Raises InputError."""
    return value if isinstance(value, jax.core.Tracer) else integer(name, value, 0, high)
