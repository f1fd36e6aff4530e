"""Answers of the engine: one sequence with drafts, or several side by side without."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import kimi
from kimi.api import Engine
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import Schedule
from kimi.errors import InputError
from kimi.models import capacity_for


@dataclass(frozen=True)
class Given:
    """What was generated behind a prompt.

    Attributes:
      answer: with its statistics.
      seconds: wall time, of the whole batch.
      batch: sequences that were decoded side by side in that time.
    """

    answer: kimi.Answer
    seconds: float
    batch: int


@dataclass(frozen=True)
class Settings:
    """How answers are decoded.

    Attributes:
      max_tokens: at most so many.
      sampling: of the first answer; answer i draws with seed + i.
      schedule: of the drafts; None decodes without.
      batch: sequences side by side, 1 to 8.
    """

    max_tokens: int
    sampling: Sampling
    schedule: Schedule | None
    batch: int


class Answers:
    """Decodes with one set of compiled programs.

    Args:
      engine: the model.
      settings: of all answers.
      longest: tokens of the longest prompt.

    Raises:
      InputError: too long a context.
    """

    def __init__(self, engine: Engine, settings: Settings, longest: int):
        self._engine, self._settings = engine, settings
        try:
            self._context = capacity_for(engine.config, longest + settings.max_tokens)
        except InputError as e:
            room = engine.config.max_position_embeddings - longest
            if not 1 <= room < settings.max_tokens:
                raise
            raise InputError(f"{e}: give --max-tokens {room} or less") from None

    def warm_up(self, prompts: Sequence[list[int]]) -> None:
        """Compiles what decoding so many prompts needs, so that times are the machine's."""
        self._decode(prompts, 1, self._settings.sampling)

    def __call__(self, prompts: Sequence[list[int]], first: int = 0) -> list[Given]:
        """Decodes up to `batch` prompts, the answers number `first` and on."""
        sampling = self._settings.sampling
        sampling = replace(sampling, seed=sampling.seed + first)
        return self._decode(prompts, self._settings.max_tokens, sampling)

    def _decode(
        self, prompts: Sequence[list[int]], max_tokens: int, sampling: Sampling
    ) -> list[Given]:
        start = time.perf_counter()
        answers = self._engine.generate_batch(
            prompts, max_tokens, sampling=sampling, verify=self._settings.schedule or "off",
            context=self._context,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        return [Given(answer, seconds, len(prompts)) for answer in answers]
