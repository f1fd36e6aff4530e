"""A predicted figure: under the model that fits best, and the range over all that are allowed."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Band:
    """A figure.

    Attributes:
      central: under the first model.
      low, high: the least and the most over all models.
    """

    central: float
    low: float
    high: float

    def times(self, factor: float) -> "Band":
        """In another unit."""
        return Band(*(factor * x for x in (self.central, self.low, self.high)))

    def fields(self, digits: int = 3) -> dict[str, float]:
        """For JSON."""
        return {name: round(value, digits) for name, value in vars(self).items()}

    def text(self, digits: int = 2) -> str:
        """For tables: `3.40 (2.80 to 5.60)`."""
        central, low, high = (f"{x:.{digits}f}" for x in (self.central, self.low, self.high))
        return f"{central} ({low} to {high})"


def band_of(values: Sequence[float]) -> Band:
    """The band of a figure under each model, the best one first."""
    return Band(values[0], min(values), max(values))
