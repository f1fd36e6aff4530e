"""Answers of the engine: one sequence with drafts, or several side by side without."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kimi.api import Decodes, Engine
from kimi.decoding.engine import Stats
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import Schedule
from kimi.errors import InputError
from kimi.runtime.decoder import KernelDecoder


@dataclass(frozen=True)
class Answer:
    """What was generated behind a prompt.

    Attributes:
      ids: with the stop id, if there was one.
      stats: of this sequence.
      seconds: wall time, of the whole batch.
      batch: sequences that were decoded side by side in that time.
    """

    ids: list[int]
    stats: Stats
    seconds: float
    batch: int


@dataclass(frozen=True)
class Settings:
    """How answers are decoded.

    Attributes:
      max_tokens: at most so many.
      temperature, top_p: 0 is greedy.
      schedule: of the drafts; None decodes without.
      batch: sequences side by side, 1 to 8.
    """

    max_tokens: int
    temperature: float
    top_p: float
    schedule: Schedule | None
    batch: int


class Answers:
    """Decodes with one set of compiled programs.

    Args:
      engine: the model.
      settings: of all answers.
      longest: tokens of the longest prompt.

    Raises:
      InputError: a batch where the engine cannot do one, or too long a context.
    """

    def __init__(self, engine: Engine, settings: Settings, longest: int):
        self._stop, self._settings = engine.tokenizer.stop_ids, settings
        try:
            self._decoder: Decodes = engine.decoder(longest + settings.max_tokens)
        except InputError as e:
            room = engine.config.max_position_embeddings - longest
            if not 1 <= room < settings.max_tokens:
                raise
            raise InputError(f"{e}: give --max-tokens {room} or less") from None
        if settings.batch > 1 and not isinstance(self._decoder, KernelDecoder):
            raise InputError(
                "--batch: expected 1 with --backend reference, which decodes one sequence at a "
                f"time, found {settings.batch}"
            )
        if settings.batch > 1 and settings.schedule is not None:
            raise InputError(f"--batch: expected --verify off, found a batch of {settings.batch}")

    def warm_up(self, prompts: Sequence[list[int]]) -> None:
        """Compiles what decoding so many prompts needs, so that times are the machine's."""
        self._decode(prompts, 1, seed=0)

    def __call__(self, prompts: Sequence[list[int]], seed: int) -> list[Answer]:
        """Decodes up to `batch` prompts; prompt i draws with seed + i."""
        return self._decode(prompts, self._settings.max_tokens, seed)

    def _decode(self, prompts: Sequence[list[int]], max_tokens: int, seed: int) -> list[Answer]:
        s, start = self._settings, time.perf_counter()
        sampling = Sampling(s.temperature, s.top_p, seed)
        found: list[list[int]] = [[] for _ in prompts]
        stats = [Stats() for _ in prompts]
        if s.batch > 1:
            assert isinstance(self._decoder, KernelDecoder)
            for step in self._decoder.generate_batch(
                prompts, max_tokens, sampling=sampling, stop_ids=self._stop, stats=stats
            ):
                for ids, new in zip(found, step, strict=True):
                    ids += new
        else:
            for new in self._decoder.generate(
                prompts[0], max_tokens, sampling=sampling, schedule=s.schedule,
                stop_ids=self._stop, stats=stats[0],
            ):  # fmt: skip
                found[0] += new
        seconds = time.perf_counter() - start
        return [
            Answer(ids, own, seconds, len(prompts)) for ids, own in zip(found, stats, strict=True)
        ]
