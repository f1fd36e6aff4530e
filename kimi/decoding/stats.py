"""What a generation did: its steps and their times."""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Step:
    """One step of a sequence.

    Attributes:
      tokens: emitted: accepted drafts and the token after them, up to a stop id or the last token
        that was asked for.
      rows: rows verified, 1 for a plain step.
      accepted: drafts accepted, of those verified; some may lie behind the last emitted token.
      confidence: float32 [K] of the drafted block, None if nothing was drafted.
      seconds: wall time without compiling; of a call of N steps, its N-th part.
    """

    tokens: list[int]
    rows: int
    accepted: int
    confidence: np.ndarray | None
    seconds: float


@dataclass
class Stats:
    """Totals of a generation.

    Attributes:
      steps: of the loop, and `tokens` emitted by them.
      prompt_tokens: length of the prompt, of which `cached_tokens` were not read again.
      prefill_seconds, decode_seconds: wall time without compiling.
      first_token_seconds: from the call to the first emitted tokens, without compiling; these come
        with those of a whole call of steps.
      compile_seconds: in which programs were traced and compiled, or read from jax's cache.
      finish: "stop" or "length", once the generation has ended by itself; else empty.
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

    def add(self, step: Step, waited: float | None = None) -> None:
        """Counts a step.

        Args:
          waited: seconds until its tokens arrived, if it was one of several in a call.
        """
        if not self.steps:
            self.first_token_seconds = self.prefill_seconds + (waited or step.seconds)
        self.steps += 1
        self.tokens += len(step.tokens)
        self.decode_seconds += step.seconds
        self.history.append(step)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per step: 1 for plain decoding."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over decoding time (prefill not included)."""
        return self.tokens / self.decode_seconds if self.decode_seconds else 0.0
