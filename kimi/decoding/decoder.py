"""The host side of decoding: checks, calls, and streams of tokens, for any backend."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import jax
import numpy as np
import numpy.typing as npt

from kimi.config import ModelConfig
from kimi.decoding.backend import Backend
from kimi.decoding.checks import check_batch, check_request, check_stop_ids
from kimi.decoding.clock import Lap
from kimi.decoding.programs import Programs
from kimi.decoding.requests import Steps, request, row_counts
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import Schedule
from kimi.decoding.snapshots import Conversation
from kimi.decoding.stats import Stats, Step
from kimi.errors import InputError, NumericsError

NOT_FINITE = "expected finite numbers, found NaN or infinity: the weights or the caches are damaged"


class Runner(Protocol):
    """What runs a loaded model: `decoding.reference.ReferenceModel`, `runtime.backend.KernelModel`.

    Attributes:
      steps_per_call: of a decoder, by default.
    """

    steps_per_call: int

    @property
    def config(self) -> ModelConfig:
        """The target model's config."""

    @property
    def block_size(self) -> int:
        """Rows of a drafted block, the newest token's included; 1 without a drafter."""

    def backend(self, capacity: int, sequences: int, drafts: bool) -> Backend:
        """For `sequences` sequences of up to `capacity` tokens, with or without drafts.

        Raises:
          InputError: drafts for more sequences than the kernels can do.
        """

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits behind each of the ids, float32 [T, V]."""


class Decoder:
    """Decodes ids.

    Args:
      model: with or without a drafter.
      capacity: the most tokens of a sequence, prompt included.
      steps: per call of the device program; default the model's.
      forced: for timing only: tokens per step that drafted decoding pretends, greedy only, whatever
        the target says (`loop.forced_accepted`); what it yields is then no text. 0 is off.
    """

    def __init__(self, model: Runner, capacity: int, steps: int | None = None, forced: float = 0.0):
        self.model, self.capacity, self.forced = model, capacity, forced
        self.steps = model.steps_per_call if steps is None else steps
        self._programs: dict[tuple[int, bool], Programs] = {}

    def programs(self, sequences: int = 1, drafts: bool = True) -> Programs:
        """The programs of so many sequences.

        Raises:
          InputError: drafts without a drafter, or for more sequences than the backend can do.
        """
        if drafts and self.model.block_size == 1:
            raise InputError("speculative decoding: expected a drafter, found none")
        key = sequences, drafts
        if key not in self._programs:
            backend = self.model.backend(self.capacity, sequences, drafts)
            self._programs[key] = Programs(backend, self.steps)
        return self._programs[key]

    def conversation(self, drafts: bool = True) -> Conversation:
        """Keeps the ends of turns on the devices. Raises InputError, see `programs`."""
        return Conversation(self.programs(1, drafts))

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

        Args:
          prompt: token ids, at least one.
          max_tokens: how many to generate at most; prompt and these must fit the capacity.
          sampling: greedy, or temperature and top-p.
          schedule: how many rows to verify; None decodes without drafting.
          stop_ids: ids that end the generation; the one that does is yielded.
          stats: filled in as the generation goes on.
          conversation: with drafts if there is a schedule: what it covers of the prompt is not
            read, and it keeps the end, if the generation gets there.

        Raises:
          InputError: see `checks.check_request`; or a schedule without a drafter.
          NumericsError: the model's logits are not finite.
        """
        batch = self.generate_batch(
            [prompt], max_tokens, sampling=sampling, schedule=schedule, stop_ids=stop_ids,
            stats=None if stats is None else [stats], conversation=conversation,
        )  # fmt: skip
        return (step[0] for step in batch)

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        sampling: Sampling = Sampling(),
        schedule: Schedule | None = None,
        stop_ids: frozenset[int] = frozenset(),
        stats: Sequence[Stats] | None = None,
        conversation: Conversation | None = None,
    ) -> Iterator[list[list[int]]]:
        """Generates behind 1 to 8 prompts side by side; sequence i draws with seed + i.

        Yields after every step the new tokens of each sequence, none where it has ended. Arguments
        and errors as of `generate`; a conversation is of one sequence.
        """
        samplings = check_batch(len(prompts), sampling)
        size = self.model.config.vocab_size
        checked = [check_request(p, max_tokens, size, self.capacity) for p in prompts]
        stop_ids = check_stop_ids(stop_ids, size)
        if schedule is not None and self.forced and not sampling.greedy:
            raise InputError("forced acceptance: expected greedy decoding, found sampling")
        programs = self.programs(len(prompts), schedule is not None)
        stats = [Stats() for _ in prompts] if stats is None else stats
        run = _Run(
            programs, [ids for ids, _ in checked], checked[0][1], samplings, schedule, stop_ids,
            stats, self.forced,
        )  # fmt: skip
        return run.steps(conversation)


class _Run:
    """One generation of a decoder."""

    def __init__(
        self, programs: Programs, prompts: list[list[int]], max_tokens: int,
        samplings: list[Sampling], schedule: Schedule | None, stop_ids: frozenset[int],
        stats: Sequence[Stats], forced: float,
    ):  # fmt: skip
        self._programs, self._tokens, self._stats = programs, prompts, stats
        self._request = request(max_tokens, stop_ids, schedule, samplings, forced=forced)
        self._greedy = all(s.greedy for s in samplings)
        self._rows, self._drafts = row_counts(schedule), schedule is not None
        for one, prompt in zip(stats, prompts, strict=True):
            one.prompt_tokens = len(prompt)

    def steps(self, conversation: Conversation | None) -> Iterator[list[list[int]]]:
        """Yields the new tokens of each sequence after every step."""
        lap = Lap()
        if conversation is None:
            state = self._programs.start(self._tokens)
        else:
            state, self._stats[0].cached_tokens = conversation.resume(self._tokens[0])
        jax.block_until_ready(state.tokens)
        for one, (seconds, compiled) in zip(
            self._stats, [lap.end()] * len(self._stats), strict=True
        ):
            one.prefill_seconds, one.compile_seconds = seconds, compiled
        finished = False
        while not finished:
            lap = Lap()
            state, self._request, done = self._programs.run(
                state, self._request, self._greedy, self._rows
            )
            done = jax.device_get(done)
            seconds, compiled = lap.end()
            for one in self._stats:
                one.compile_seconds += compiled
            finished = bool(done.finished.all())
            yield from self._read(done, seconds)
        if conversation is not None:
            conversation.save(state, self._tokens[0])

    def _read(self, done: Steps, seconds: float) -> Iterator[list[list[int]]]:
        """The steps of a call that took `seconds`."""
        count = int(done.count)
        for i in range(count):
            new: list[list[int]] = []
            for b, (tokens, one) in enumerate(zip(self._tokens, self._stats, strict=True)):
                if not done.finite[i, b]:
                    raise NumericsError(f"logits at position {len(tokens) - 1}: {NOT_FINITE}")
                emitted = int(done.emitted[i, b])
                ids = done.tokens[i, b, :emitted].tolist()
                new.append(ids)
                if not ids:
                    continue
                tokens += ids
                confidence = np.asarray(done.confidence[i, b]) if self._drafts else None
                rows, accepted = int(done.rows[i, b]), int(done.accepted[i, b])
                one.add(Step(ids, rows, accepted, confidence, seconds / count), seconds)
                if done.finished[b] and not done.emitted[i + 1 : count, b].any():
                    one.finish = "stop" if done.stopped[b] else "length"
            yield new
