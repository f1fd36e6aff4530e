"""How many rows to verify: never, always the same number, or as many as the confidence is worth.

The drafter's confidence head gives, for each drafted token, the probability that it is accepted if
all before it were. Their running product is the probability that a prefix survives, and its sum
the expected number of accepted tokens. A cost table says what R rows cost. The adaptive schedule
takes the R with the most expected tokens per unit of time.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from kimi.errors import InputError
from kimi.fields import Fields, load_json


@dataclass(frozen=True)
class CostTable:
    """What a step costs, in any unit of time.

    Attributes:
      draft: one run of the drafter.
      rows: rows verified -> cost. 1 must be there (the plain step); other numbers may be left out,
        and then are never chosen.
    """

    draft: float
    rows: Mapping[int, float]

    def __post_init__(self) -> None:
        if 1 not in self.rows:
            raise InputError("cost table: rows: expected a cost for 1 row (the plain step)")
        for what, cost in [("draft", self.draft), *self.rows.items()]:
            if not (np.isfinite(cost) and cost > 0) and not (what == "draft" and cost == 0):
                raise InputError(f"cost table: {what}: expected a time above 0, found {cost}")

    @classmethod
    def load(cls, path: str | Path) -> "CostTable":
        """Reads the JSON that `save` wrote. Raises ConfigError or InputError naming the field."""
        fields = Fields(load_json(path), str(path))
        rows = fields.child("rows")
        if bad := [k for k in rows.data if not k.isdecimal() or int(k) < 1]:
            raise rows.error(bad[0], "a number of rows as the key")
        return cls(fields.number("draft"), {int(k): rows.number(k) for k in rows.data})

    def save(self, path: str | Path) -> None:
        """Writes the table as JSON."""
        rows = {str(k): round(v, 6) for k, v in sorted(self.rows.items())}
        Path(path).write_text(json.dumps({"draft": round(self.draft, 6), "rows": rows}, indent=1))


# Predicted milliseconds on a 2x2x4 slice of TPU v7 (compiled schedules, not hardware), as printed
# by `python -m kimi.lab predict --rows 8 --verify --costs FILE`: one kernel for 1 row, another one
# for more.
PREDICTED_TPU_COSTS = CostTable(
    0.14, {1: 2.19, 2: 3.16, 3: 3.42, 4: 3.67, 5: 3.91, 6: 4.16, 7: 4.39, 8: 4.63}
)


class Schedule(Protocol):
    """Chooses the rows of the next step."""

    def rows(self, confidence: np.ndarray, limit: int) -> int:
        """Rows to verify, anchor included.

        Args:
          confidence: [K] float32 of the K drafted tokens.
          limit: the most rows there can be (the block size), at least 1.
        """
        ...


@dataclass(frozen=True)
class Fixed:
    """Always the same number of rows."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"verified rows: expected at least 1, found {self.count}")

    def rows(self, confidence: np.ndarray, limit: int) -> int:
        """See `Schedule.rows`."""
        return min(self.count, limit)


@dataclass(frozen=True)
class Adaptive:
    """As many rows as maximise expected tokens per time, by confidence and cost."""

    costs: CostTable

    def rows(self, confidence: np.ndarray, limit: int) -> int:
        """See `Schedule.rows`. Fewer rows win a tie."""
        tokens = expected_tokens(confidence)
        choices = [r for r in sorted(self.costs.rows) if r <= min(limit, len(tokens))]
        return max(choices, key=lambda r: tokens[r - 1] / (self.costs.draft + self.costs.rows[r]))


def expected_tokens(confidence: np.ndarray) -> np.ndarray:
    """Tokens that a step is expected to yield when 1, 2, ... K rows are verified.

    Args:
      confidence: [K] probabilities, each given that all drafts before were accepted.

    Returns: [K] float64; entry r - 1 is 1 + the sum of the first r - 1 survival probabilities.
    """
    survival = np.cumprod(np.asarray(confidence, np.float64))
    return 1 + np.concatenate([[0.0], np.cumsum(survival[:-1])])
