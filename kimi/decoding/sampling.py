"""How the next token is chosen from logits."""

import math
from dataclasses import dataclass
from typing import TypedDict

from kimi.errors import InputError
from kimi.values import integer, number, shown

INT32_MAX = 2**31 - 1


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampling` as keywords."""

    temperature: float
    top_p: float
    seed: int
    top_k: int


@dataclass(frozen=True)
class Sampling:
    """A sampling method.

    Attributes:
      temperature: 0 is greedy; otherwise logits are divided by it. At most 100.
      top_p: keep the most probable tokens until their probability reaches top_p, in (0, 1]; 1 keeps
        all.
      seed: of the pseudo-random choices, 0 .. 2^31 - 1; the same seed repeats the same output.
      top_k: keep at most so many tokens, the most probable ones, and apply `top_p` to what their
        probabilities are among themselves; 0 keeps all. At most 2^31 - 1.

    Raises:
      InputError: a value of another type or out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0

    def __post_init__(self) -> None:
        temperature = number("temperature", self.temperature)
        if not (math.isfinite(temperature) and 0 <= temperature <= 100):
            found = shown(self.temperature)
            raise InputError(
                f"temperature: expected a number from 0 (greedy) to 100, found {found}"
            )
        if 0 < temperature < 1e-3:
            raise InputError(
                f"temperature: expected 0 (greedy) or at least 0.001, found {temperature}"
            )
        top_p = number("top_p", self.top_p)
        if not 0 < top_p <= 1:  # also refuses NaN
            found = shown(self.top_p)
            raise InputError(f"top_p: expected a number above 0 and up to 1, found {found}")
        for name, value in (("temperature", temperature), ("top_p", top_p)):
            object.__setattr__(self, name, value)
        for name in ("seed", "top_k"):
            value = integer(name, getattr(self, name), 0, INT32_MAX)
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0
