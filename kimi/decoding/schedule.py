"""How many rows to verify: never, always the same number, or as many as the confidence is worth.

The drafter's confidence head gives, for each drafted token, the probability that it is accepted if
all before it were. Their running product is the probability that a prefix survives, and its sum
the expected number of accepted tokens. A cost table says what R rows cost. The adaptive schedule
takes the R with the most expected tokens per unit of time: `loop.choose_rows`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kimi.errors import InputError
from kimi.fields import Fields, load_json
from kimi.files import write_json
from kimi.values import integer, number, shown
from kimi.values import path as checked_path


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
        if not isinstance(self.rows, Mapping):
            raise InputError(
                f"cost table: rows: expected a mapping from rows to costs, found {shown(self.rows)}"
            )
        rows = {integer("cost table: rows", r, 1): cost for r, cost in self.rows.items()}
        if 1 not in rows:
            raise InputError("cost table: rows: expected a cost for 1 row (the plain step)")
        object.__setattr__(self, "draft", _cost("draft", self.draft, least=0))
        object.__setattr__(self, "rows", {r: _cost(r, cost) for r, cost in rows.items()})

    @classmethod
    def load(cls, path: str | Path) -> "CostTable":
        """Reads the JSON that `save` wrote. Raises ConfigError or InputError naming the field."""
        path = checked_path("cost table", path)
        fields = Fields(load_json(path), path)
        rows = fields.child("rows")
        if bad := [k for k in rows.data if not re.fullmatch("[1-9][0-9]{0,3}", k)]:
            raise rows.error(bad[0], "a number of rows as the key")
        return cls(fields.number("draft"), {int(k): rows.number(k) for k in rows.data})

    def save(self, path: str | Path) -> None:
        """Writes the table as JSON. Raises InputError if it cannot be written."""
        rows = {str(k): v for k, v in sorted(self.rows.items())}
        write_json(path, {"draft": self.draft, "rows": rows})


def _cost(what: object, value: object, least: float | None = None) -> float:
    """A time above 0, or `least`. Raises InputError."""
    found = number(f"cost table: {what}", value)
    if not (math.isfinite(found) and (found > 0 or found == least)):
        raise InputError(f"cost table: {what}: expected a time above 0, found {shown(value)}")
    return found


# Predicted milliseconds on a 2x2x4 slice of TPU v7 (compiled schedules, not hardware), as printed
# by `python -m kimi.lab predict --rows 8 --verify --costs FILE`: one kernel for 1 row, another one
# for more.
PREDICTED_TPU_COSTS = CostTable(
    0.20, {1: 3.42, 2: 4.65, 3: 4.93, 4: 5.20, 5: 5.47, 6: 5.73, 7: 5.98, 8: 6.23}
)


@dataclass(frozen=True)
class Fixed:
    """Always the same number of rows, at most the block's."""

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", integer("rows", self.count, 1))


@dataclass(frozen=True)
class Adaptive:
    """As many rows as maximise expected tokens per time, by confidence and cost."""

    costs: CostTable

    def __post_init__(self) -> None:
        if not isinstance(self.costs, CostTable):
            raise InputError(f"costs: expected a CostTable, found {shown(self.costs)}")


Schedule = Fixed | Adaptive
