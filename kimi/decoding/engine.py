"""The reference decoding loop: prefill, draft, verify, accept, roll back, for one sequence.

The newest token (the anchor) is always still unseen by the target: a step feeds it together with
the drafted tokens, keeps those that the target agrees with, and emits them plus one. Without a
drafter, or with one row, a step is plain decoding by the same code.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import jax
import numpy as np

from kimi.decoding.clock import Lap
from kimi.decoding.programs import Context, Programs
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import Adaptive, CostTable, Fixed, Schedule
from kimi.errors import InputError, NumericsError, RoomError
from kimi.kernels.chip import SUBLANES
from kimi.reference.state import Draft
from kimi.values import integer, shown

PREFILL_SIZES = (128, 512)  # compiled shapes of a prefill call; longer prompts take several calls


@dataclass
class Step:
    """One turn of the loop.

    Attributes:
      tokens: emitted tokens, drafts that were accepted and the one after them.
      rows: rows verified, 1 for a plain step.
      accepted: drafts accepted.
      confidence: [K] of the drafted block, None if nothing was drafted.
    """

    tokens: list[int]
    rows: int
    accepted: int
    confidence: np.ndarray | None


@dataclass
class Stats:
    """Totals of a generation.

    Attributes:
      steps: turns of the loop, and `tokens` emitted by them.
      prompt_tokens: length of the prompt, of which `cached_tokens` were not read again.
      prefill_seconds, decode_seconds: wall time without compiling.
      first_token_seconds: from the call to the first tokens given out, without compiling; on
        devices these come with those of a whole call of steps.
      compile_seconds: in which programs were traced and compiled, or read from jax's cache.
      finish: "stop" or "length", once it has ended by itself; else empty.
      history: every step, for calibration and plots.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    steps: int = 0
    tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_seconds: float = 0.0
    compile_seconds: float = 0.0
    finish: str = ""
    history: list[Step] = field(default_factory=list, repr=False)

    def add(
        self, step: Step, emitted: Sequence[int], seconds: float, waited: float | None = None
    ) -> None:
        """Counts a step.

        Args:
          emitted: those of its tokens that were given out.
          seconds: that it took.
          waited: until its tokens were there, if it was one of several in a call.
        """
        if not self.steps:
            self.first_token_seconds = self.prefill_seconds + (waited or seconds)
        self.steps += 1
        self.tokens += len(emitted)
        self.decode_seconds += seconds
        self.history.append(step)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per step: 1 for plain decoding."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over decoding time (prefill not included)."""
        return self.tokens / self.decode_seconds if self.decode_seconds else 0.0


class Decoder:
    """Decodes one sequence at a time with the reference model.

    Args:
      programs: the compiled model, with or without a drafter.
      capacity: the most tokens of a sequence, prompt included.
    """

    def __init__(self, programs: Programs, capacity: int):
        self.programs = programs
        self.capacity = capacity

    @property
    def block_size(self) -> int:
        """Rows of a drafted block, anchor included; 1 without a drafter."""
        draft = self.programs.draft_config
        return 1 if draft is None else draft.block_size

    def empty_context(self) -> Context:
        """The context before the first token."""
        return self.programs.empty_context(self.capacity)

    def prefill(self, tokens: Sequence[int], context: Context) -> Context:
        """Consumes `tokens`; the context given is used up."""
        done = 0
        while done < len(tokens):
            left = len(tokens) - done
            size = next((s for s in PREFILL_SIZES if s >= left), PREFILL_SIZES[-1])
            part = tokens[done : done + size]
            padded = np.zeros(size, np.int32)
            padded[: len(part)] = part
            context = self.programs.prefill(padded, len(part), context)
            done += len(part)
        return context

    def draft(self, anchor: int, context: Context) -> Draft:
        """Drafts the block after `anchor`."""
        if context.draft is None:
            raise InputError("speculative decoding: expected a drafter, found none")
        return self.programs.draft(anchor, context.draft)

    def verify(
        self, tokens: Sequence[int], context: Context, sampling: Sampling
    ) -> tuple[list[int], int, Context]:
        """Feeds anchor and drafts; the context given is used up.

        Returns: emitted tokens; drafts accepted; the context that has consumed the anchor and the
          accepted drafts and nothing else.

        Raises:
          NumericsError: the model's logits are not finite.
        """
        result = self.programs.verify(np.asarray(tokens, np.int32), context, sampling)
        if not bool(result.finite):
            position = int(result.context.target.length)
            raise NumericsError(
                f"logits at position {position}: expected finite numbers, found NaN or infinity: "
                "the weights or the caches are damaged"
            )
        accepted = int(result.accepted)
        emitted = [int(t) for t in tokens[1 : accepted + 1]] + [int(result.following)]
        return emitted, accepted, result.context

    def check_prompt(self, prompt: Sequence[int], max_tokens: int) -> None:
        """Raises InputError for a prompt or a length that cannot be served."""
        check_request(prompt, max_tokens, self.programs.config.vocab_size, self.capacity)

    def warm_up(self, prompt: Sequence[int], sampling: Sampling, schedule: Schedule | None) -> None:
        """Compiles what such a generation needs, so that its speed is the machine's."""
        context = self.prefill(prompt[:-1], self.empty_context())
        widths = {1}
        if isinstance(schedule, Fixed):
            widths = {schedule.count}
        elif isinstance(schedule, Adaptive):
            widths = set(schedule.costs.rows)
        if schedule is not None:
            jax.block_until_ready(self.draft(prompt[-1], context))
        for width in sorted(widths):
            _, _, context = self.verify([prompt[-1]] * width, context, sampling)

    def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        sampling: Sampling = Sampling(),
        schedule: Schedule | None = None,
        stop_ids: frozenset[int] = frozenset(),
        stats: Stats | None = None,
    ) -> Iterator[list[int]]:
        """Generates, yielding the new tokens of every step as they come.

        Args:
          prompt: token ids, at least one.
          max_tokens: how many to generate at most; prompt and these must fit the context.
          sampling: greedy, or temperature and top-p.
          schedule: how many rows to verify; None decodes without drafting.
          stop_ids: ids that end the generation; the one that does is yielded.
          stats: filled in as the generation goes on.

        Raises:
          InputError: see `check_prompt`; or a schedule without a drafter.
          NumericsError: see `verify`.
        """
        vocabulary = self.programs.config.vocab_size
        prompt, max_tokens = check_request(prompt, max_tokens, vocabulary, self.capacity)
        stop_ids = check_stop_ids(stop_ids, vocabulary)
        if schedule is not None and self.programs.draft_config is None:
            raise InputError("speculative decoding: expected a drafter, found none")
        stats = Stats() if stats is None else stats
        stats.prompt_tokens = len(prompt)
        return self._generate(prompt, max_tokens, sampling, schedule, stop_ids, stats)

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        sampling: Sampling = Sampling(),
        stop_ids: frozenset[int] = frozenset(),
    ) -> Iterator[list[list[int]]]:
        """Generates behind 1 to 8 prompts without drafts, one after the other.

        Yields after every step the new tokens of each sequence, of all but one none.

        Raises:
          InputError: see `check_request` and `check_batch`.
        """
        runs = [
            self.generate(prompt, max_tokens, sampling=own, stop_ids=stop_ids)
            for prompt, own in zip(prompts, check_batch(len(prompts), sampling), strict=True)
        ]
        return (
            [ids if j == i else [] for j in range(len(runs))]
            for i, run in enumerate(runs)
            for ids in run
        )

    def _generate(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        schedule: Schedule | None,
        stop_ids: frozenset[int],
        stats: Stats,
    ) -> Iterator[list[int]]:
        lap = Lap()
        context = self.prefill(prompt[:-1], self.empty_context())
        jax.block_until_ready(context.target.length)
        stats.prefill_seconds, stats.compile_seconds = lap.end()
        anchor, left = int(prompt[-1]), max_tokens
        while left:
            lap = Lap()
            step, context = self._step(anchor, context, sampling, schedule)
            seconds, compiled = lap.end()
            stats.compile_seconds += compiled
            anchor = step.tokens[-1]
            new = _until_stop(step.tokens[:left], stop_ids)
            left -= len(new)
            stats.add(step, new, seconds)
            if new[-1] in stop_ids:
                stats.finish, left = "stop", 0
            elif not left:
                stats.finish = "length"
            yield new

    def _step(
        self,
        anchor: int,
        context: Context,
        sampling: Sampling,
        schedule: Schedule | None,
    ) -> tuple[Step, Context]:
        if schedule is None:
            tokens, accepted, context = self.verify([anchor], context, sampling)
            return Step(tokens, 1, accepted, None), context
        drafted = self.draft(anchor, context)
        confidence = np.asarray(drafted.confidence)
        # The last candidate would need a row more than the block has. Near the end of the output
        # rows are not cut: each number of rows is a program of its own, and compiling costs more.
        rows = schedule.rows(confidence, self.block_size)
        block = [anchor, *np.asarray(drafted.tokens)[: rows - 1].tolist()]
        tokens, accepted, context = self.verify(block, context, sampling)
        return Step(tokens, rows, accepted, confidence), context

    def conversation(self) -> None:
        """Nothing is kept between turns: each is read from its beginning."""

    def measure_costs(self, widths: Sequence[int] = (1, 2, 4, 8), repeats: int = 5) -> CostTable:
        """Times this machine: milliseconds of a draft and of verifying each number of rows.

        The median of `repeats` runs after one that compiles.
        """
        context = self.prefill([0] * 64, self.empty_context())

        def median(times: list[float]) -> float:
            return float(np.median(times[1:]) * 1e3)

        times: list[float] = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            jax.block_until_ready(self.draft(0, context))
            times.append(time.perf_counter() - start)
        draft, rows = median(times), {}
        for width in sorted(w for w in widths if w <= self.block_size):
            times = []
            for _ in range(repeats + 1):
                start = time.perf_counter()
                _, _, context = self.verify([0] * width, context, Sampling())
                times.append(time.perf_counter() - start)
            rows[width] = median(times)
        return CostTable(draft, rows)


def _until_stop(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """`tokens` up to and including the first stop id."""
    for i, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: i + 1]
    return tokens


def check_request(
    prompt: Sequence[int], max_tokens: int, vocab_size: int, capacity: int
) -> tuple[list[int], int]:
    """The prompt and the number of tokens to generate as Python integers.

    Raises:
      InputError: no such prompt or number.
      RoomError: more than the context holds.
    """
    ids = check_ids("prompt", prompt, vocab_size)
    if not ids:
        raise InputError("prompt: expected at least one token, found none")
    max_tokens = integer("max tokens", max_tokens, 1)
    if len(ids) + max_tokens > capacity:
        raise RoomError(
            f"prompt: {len(ids)} tokens and {max_tokens} to generate: expected at most "
            f"{capacity} in all (the context), found {len(ids) + max_tokens}"
        )
    return ids, max_tokens


def check_ids(what: str, ids: Iterable[int], vocab_size: int) -> list[int]:
    """Token ids as Python integers; `what` says whose they are.

    Raises:
      InputError: no ids, or the first one outside the vocabulary.
    """
    listed = ids.tolist() if isinstance(ids, np.ndarray | jax.Array) else ids
    if isinstance(listed, str | bytes | bytearray | memoryview | Mapping | Set) or not isinstance(
        listed, Iterable
    ):
        raise InputError(f"{what}: expected token ids, found {shown(ids)}")
    found = []
    for index, token in enumerate(listed):
        value = token if type(token) is int else integer(f"{what}: token {index}", token)
        if not 0 <= value < vocab_size:
            raise InputError(
                f"{what}: token {index}: expected an id from 0 to {vocab_size - 1}, found "
                f"{shown(value)}"
            )
        found.append(value)
    return found


def check_stop_ids(
    stop_ids: Iterable[int], vocab_size: int, limit: int | None = None
) -> frozenset[int]:
    """Ids that end a generation. Raises InputError, see `check_ids`, or if there are too many."""
    listed = list(stop_ids) if isinstance(stop_ids, Set) else stop_ids
    found = frozenset(check_ids("stop ids", listed, vocab_size))
    if limit is not None and len(found) > limit:
        raise InputError(f"stop ids: expected at most {limit}, found {len(found)}")
    return found


def check_batch(count: int, sampling: Sampling) -> list[Sampling]:
    """The sampling of each of `count` sequences: sequence i draws with seed + i.

    Raises:
      InputError: not 1 to 8 sequences, or no seed for the last one.
    """
    if not 1 <= count <= SUBLANES:
        raise InputError(f"prompts: expected 1 to {SUBLANES}, found {count}")
    return [replace(sampling, seed=sampling.seed + i) for i in range(count)]
