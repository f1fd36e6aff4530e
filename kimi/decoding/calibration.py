"""How well the drafter's confidence predicts acceptance."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kimi.decoding.stats import Step


@dataclass(frozen=True)
class Calibration:
    """Predicted against observed acceptance of drafted tokens.

    Attributes:
      rows: [N] int, place of each drafted token in its block, from 0.
      confidence: [N] float, predicted probability that it is accepted given all before it were.
      accepted: [N] bool.
    """

    rows: np.ndarray
    confidence: np.ndarray
    accepted: np.ndarray

    @classmethod
    def from_steps(cls, steps: Iterable[Step]) -> "Calibration":
        """Collects every drafted token whose fate was decided.

        That is the accepted ones and the first one rejected; not those after a rejection, after the
        end of the sequence, or beyond the verified rows.
        """
        decided: list[tuple[int, float, bool]] = []
        for step in steps:
            if step.confidence is None:
                continue
            for row in range(min(step.accepted + 1, step.rows - 1, len(step.tokens))):
                decided.append((row, float(step.confidence[row]), row < step.accepted))
        table = np.array(decided, float).reshape(-1, 3)
        return cls(table[:, 0].astype(int), table[:, 1], table[:, 2].astype(bool))

    @property
    def brier(self) -> float:
        """Mean squared error of the predicted probability."""
        return float(np.mean((self.confidence - self.accepted) ** 2))

    def bins(self, count: int = 10) -> list[tuple[float, float, int, float, float]]:
        """Equal bins of confidence: (from, to, tokens, mean confidence, accepted share)."""
        index = np.clip((self.confidence * count).astype(int), 0, count - 1)
        return [
            (
                b / count, (b + 1) / count, int(inside.sum()),
                float(self.confidence[inside].mean()), float(self.accepted[inside].mean()),
            )
            for b in range(count)
            if (inside := index == b).any()
        ]  # fmt: skip

    @property
    def expected_error(self) -> float:
        """ECE over ten bins: mean distance of predicted and observed, weighted by tokens."""
        total = len(self.confidence)
        return sum(n / total * abs(mean - share) for _, _, n, mean, share in self.bins())

    def by_row(self) -> list[float]:
        """Share accepted given that all before were, for each row of the block."""
        return [
            float(self.accepted[self.rows == row].mean())
            for row in range(self.rows.max(initial=-1) + 1)
        ]
