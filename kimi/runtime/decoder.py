"""The host side of decoding on devices: checks, calls, and a stream of tokens.

The same promises as `decoding.engine.Decoder`, which runs the reference model.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from kimi.decoding.clock import Lap
from kimi.decoding.engine import Stats, Step, check_batch, check_request, check_stop_ids
from kimi.decoding.sampling import Sampling, sampling_arrays
from kimi.decoding.schedule import Schedule
from kimi.errors import InputError, NumericsError
from kimi.runtime.batch import BatchPrograms, BatchRequest
from kimi.runtime.blocks import STOP_IDS, BlockPrograms
from kimi.runtime.model import DeviceModel
from kimi.runtime.requests import (
    allows_singles,
    drafted_request,
    row_costs,
    stop_array,
)
from kimi.runtime.snapshots import Conversation


class KernelDecoder:
    """Decodes with the kernels.

    Args:
      model: placed.
      capacity: the most tokens of a sequence, prompt included.
      steps: steps per call of the device program. More hide the host better, fewer stream sooner.
      forced: for timing only: tokens per step that drafted decoding pretends, greedy only, whatever
        the target says (`blocks.forced_accepted`); what it yields is then no text. 0 is off.
    """

    def __init__(self, model: DeviceModel, capacity: int, steps: int = 8, forced: float = 0.0):
        self.model, self.capacity, self.steps, self.forced = model, capacity, steps, forced
        self._batches: dict[int, BatchPrograms] = {}

    @cached_property
    def blocks(self) -> BlockPrograms:
        """Programs of one sequence with drafts. Raises InputError without a drafter."""
        return BlockPrograms(self.model, self.capacity, self.steps)

    def batch(self, sequences: int) -> BatchPrograms:
        """Programs of `sequences` sequences without drafts."""
        if sequences not in self._batches:
            self._batches[sequences] = BatchPrograms(
                self.model, sequences, self.capacity, self.steps
            )
        return self._batches[sequences]

    def check_prompt(self, prompt: Sequence[int], max_tokens: int) -> None:
        """Raises InputError for a prompt or a length that cannot be served."""
        self._check(prompt, max_tokens)

    def warm_up(self, prompt: Sequence[int], sampling: Sampling, schedule: Schedule | None) -> None:
        """Compiles what such a generation needs, so that its speed is the machine's."""
        for _ in self.generate(prompt, 1, sampling=sampling, schedule=schedule):
            pass

    def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        sampling: Sampling = Sampling(),
        schedule: Schedule | None = None,
        stop_ids: frozenset[int] = frozenset(),
        stats: Stats | None = None,
        conversation: Conversation | None = None,
    ) -> Iterator[list[int]]:
        """Generates, yielding the new tokens of every step as they come.

        Arguments, results and errors as of `decoding.engine.Decoder.generate`, and:

        Args:
          conversation: of `blocks`, with a schedule only: what it covers of the prompt is not read,
            and it keeps the end, if the generation gets there.
        """
        checked = self._check(prompt, max_tokens, stop_ids)
        stats = Stats() if stats is None else stats
        stats.prompt_tokens = len(prompt)
        if schedule is None:
            return self._plain(*checked, sampling, stats)
        if self.forced and not sampling.greedy:
            raise InputError("forced acceptance: expected greedy decoding, found sampling")
        costs = row_costs(schedule, self.blocks.block)
        return self._drafted(*checked, sampling, costs, stats, conversation)

    def conversation(self) -> Conversation:
        """Keeps the ends of turns on the devices. Raises InputError without a drafter."""
        return Conversation(self.blocks)

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        sampling: Sampling = Sampling(),
        stop_ids: frozenset[int] = frozenset(),
        stats: Sequence[Stats] | None = None,
    ) -> Iterator[list[list[int]]]:
        """Generates behind 1 to 8 prompts without drafts; sequence i draws with seed + i.

        Yields after every step the new tokens of each sequence, none or one.

        Raises:
          InputError: see `decoding.engine.check_request` and `check_batch`.
        """
        check_batch(len(prompts), sampling)
        checked = [self._check(prompt, max_tokens, stop_ids) for prompt in prompts]
        stats = [Stats() for _ in prompts] if stats is None else stats
        for own, (prompt, *_) in zip(stats, checked, strict=True):
            own.prompt_tokens = len(prompt)
        return self._batched([ids for ids, *_ in checked], *checked[0][1:], sampling, stats)

    def _check(
        self, prompt: Sequence[int], max_tokens: int, stop_ids: frozenset[int] = frozenset()
    ) -> tuple[list[int], int, frozenset[int]]:
        """What was asked for, as plain values. Raises InputError."""
        size = self.model.config.vocab_size
        ids, count = check_request(prompt, max_tokens, size, self.capacity)
        return ids, count, check_stop_ids(stop_ids, size, STOP_IDS)

    def _plain(
        self, prompt: Sequence[int], max_tokens: int, stop_ids: frozenset[int],
        sampling: Sampling, stats: Stats,
    ) -> Iterator[list[int]]:  # fmt: skip
        for step in self._batched([prompt], max_tokens, stop_ids, sampling, [stats]):
            yield step[0]

    def _batched(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, stop_ids: frozenset[int],
        sampling: Sampling, stats: Sequence[Stats],
    ) -> Iterator[list[list[int]]]:  # fmt: skip
        programs = self.batch(len(prompts))
        request = BatchRequest(
            jnp.full(len(prompts), max_tokens, jnp.int32), stop_array(stop_ids),
            *sampling_arrays(sampling),
            jnp.arange(len(prompts), dtype=jnp.int32) + sampling.seed,
        )  # fmt: skip
        lap = Lap()
        state = jax.block_until_ready(programs.start(prompts))
        seconds, compiled = lap.end()
        for own in stats:
            own.prefill_seconds, own.compile_seconds = seconds, compiled
        while np.asarray(request.left).any():
            lap = Lap()
            state, request, done = programs.run(state, request, sampling.greedy)
            done = jax.device_get(done)
            seconds, compiled = lap.end()
            for own in stats:
                own.compile_seconds += compiled
            require_finite(bool(done.finite))
            for i in range(int(done.count)):
                new = [
                    [int(t)] if e else []
                    for t, e in zip(done.tokens[i], done.emitted[i], strict=True)
                ]
                for own, ids in zip(stats, new, strict=True):
                    if ids:
                        own.add(Step(ids, 1, 0, None), ids, seconds / int(done.count), seconds)
                if i == done.count - 1:
                    _set_finish(stats, done.stopped, np.asarray(request.left))
                yield new

    def _drafted(
        self, prompt: Sequence[int], max_tokens: int, stop_ids: frozenset[int],
        sampling: Sampling, costs: np.ndarray, stats: Stats, turn: Conversation | None,
    ) -> Iterator[list[int]]:  # fmt: skip
        programs, singles = self.blocks, allows_singles(costs)
        lap = Lap()
        if turn is None:
            state = programs.feed(programs.empty(), np.asarray(prompt, np.int32))
        else:
            state, stats.cached_tokens = turn.resume(prompt)
        jax.block_until_ready(state.tokens)
        stats.prefill_seconds, stats.compile_seconds = lap.end()
        left, tokens = max_tokens, list(prompt)
        while left and not stats.finish:
            lap = Lap()
            request = drafted_request(
                left, stop_ids, costs, sampling, before=stats.steps, forced=self.forced
            )
            state, done = programs.run(state, request, sampling.greedy, singles)
            done = jax.device_get(done)
            seconds, compiled = lap.end()
            stats.compile_seconds += compiled
            require_finite(bool(done.finite))
            for i in range(int(done.count)):
                ids = done.tokens[i, : done.emitted[i]].tolist()
                left -= len(ids)
                tokens += ids
                confidence = done.confidence[i, : programs.block]
                step = Step(ids, int(done.rows[i]), int(done.accepted[i]), confidence)
                stats.add(step, ids, seconds / int(done.count), seconds)
                if i == done.count - 1 and (done.stopped or not left):
                    stats.finish = "stop" if done.stopped else "length"
                yield ids
        if turn is not None:
            turn.save(state, tokens)


def _set_finish(stats: Sequence[Stats], stopped: np.ndarray, left: np.ndarray) -> None:
    """Says of every sequence that has ended in a call why it did."""
    for own, by_stop, more in zip(stats, stopped, left, strict=True):
        if not more and not own.finish:
            own.finish = "stop" if by_stop else "length"


def require_finite(finite: bool) -> None:
    """Raises NumericsError unless all logits of a call were numbers."""
    if not finite:
        raise NumericsError(
            "logits: expected finite numbers, found NaN or infinity: the weights or the caches are "
            "damaged"
        )
