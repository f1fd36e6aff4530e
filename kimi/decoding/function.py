"""Drafted decoding as a pure function with explicit state, for a caller's own `jax.jit`."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import Array

from kimi.decoding.checks import check_request, check_stop_ids
from kimi.decoding.decoder import NOT_FINITE
from kimi.decoding.programs import Programs
from kimi.decoding.requests import Request, Steps, request, row_counts
from kimi.decoding.sampling import INT32_MAX, Sampling
from kimi.decoding.schedule import Schedule
from kimi.decoding.state import DecodeState
from kimi.errors import InputError, NumericsError
from kimi.progress import announced
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
      programs: of one sequence, with drafts.
      capacity: tokens of a sequence at most, prompt included.
      sampling: whether it is greedy is compiled in; its numbers go into every request.
      schedule: how many drafted rows a step verifies.

    Attributes:
      weights: the target's and the drafter's, a tree of arrays.
      steps: of a call.
    """

    def __init__(self, programs: Programs, capacity: int, sampling: Sampling, schedule: Schedule):
        self._programs, self._sampling, self._schedule = programs, sampling, schedule
        self.capacity, self.steps = capacity, programs.steps
        self._compiled = jax.jit(self._call, donate_argnums=1)

    def __repr__(self) -> str:
        return (
            f"DecodeFunction(capacity={self.capacity}, steps={self.steps}, "
            f"block_size={self._programs.backend.block}, {self._sampling})"
        )

    @property
    def weights(self) -> Any:
        """The first argument."""
        return self._programs.backend.weights

    def start(self, prompt: Sequence[int]) -> DecodeState:
        """The state behind a prompt: all but its last token have been read.

        Raises:
          InputError: no token, an id outside the vocabulary, or no room for one token more.
        """
        ids, _ = check_request(prompt, 1, self._programs.backend.vocab_size, self.capacity)
        with announced("compiling and reading the prompt"):
            return self._programs.start([ids])

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
        stop_ids = check_stop_ids(stop_ids, self._programs.backend.vocab_size)
        return request(max_tokens, stop_ids, self._schedule, [self._sampling], before=before)

    def __call__(
        self, weights: Any, state: DecodeState, request: Request
    ) -> tuple[DecodeState, Steps]:
        """Up to `steps` steps.

        Args:
          weights: `weights`.
          state: of `start` or of the call before, see `decoding.state.DecodeState`.
          request: see `decoding.requests.Request`; all of it is traced.

        Returns: the state behind the emitted tokens; what the steps did, `decoding.requests.Steps`.

        Raises:
          InputError: another state or request than this function's, or a state that an earlier call
            was given.
        """
        self._require(state, request)
        with announced("compiling"):
            found: tuple[DecodeState, Steps] = self._compiled(weights, state, request)
        return found

    def _call(
        self, weights: Any, state: DecodeState, request: Request
    ) -> tuple[DecodeState, Steps]:
        run = self._programs.compiled(self._sampling.greedy, row_counts(self._schedule))
        state, (_, done) = run(weights, state, request)
        return state, done

    def _require(self, state: DecodeState, request: Request) -> None:
        """Raises InputError, see `__call__`."""
        if not isinstance(state, DecodeState):
            raise InputError(f"state: expected a DecodeState, found {shown(state)}")
        if not isinstance(request, Request):
            raise InputError(f"request: expected a Request, found {shown(request)}")
        wanted, _ = jax.tree_util.tree_flatten_with_path(self._programs.backend.shapes())
        arrays = dict(jax.tree_util.tree_flatten_with_path(state)[0])
        for path, shape in wanted:
            found = arrays.get(path)
            if found is None or (found.shape, found.dtype) != (shape.shape, shape.dtype):
                name = jax.tree_util.keystr(path).removeprefix(".")
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
        count = int(done.count)
        if not done.finite[:count].all():
            raise NumericsError(f"logits: {NOT_FINITE}")
        rows = zip(done.tokens[:count, 0], done.emitted[:count, 0], strict=True)
        return [int(t) for tokens, emitted in rows for t in tokens[:emitted]]


def _count(name: str, value: int | Array, high: int) -> int | Array:
    """A number up to `high`, or a traced one as it is. Raises InputError."""
    return value if isinstance(value, jax.core.Tracer) else integer(name, value, 0, high)
