"""Collecting confidence and acceptance from steps."""

import numpy as np
import pytest

from kimi.decoding.calibration import Calibration
from kimi.decoding.stats import Step

CONFIDENCE = np.array([0.95, 0.85, 0.75, 0.65], np.float32)


def pairs(*steps):
    c = Calibration.from_steps(steps)
    return list(zip(c.rows.tolist(), c.accepted.tolist(), strict=True))


def test_accepted_and_first_refused_are_counted():
    assert pairs(Step([1, 2, 9], 4, 2, CONFIDENCE, 0.1)) == [(0, True), (1, True), (2, False)]


def test_nothing_is_known_beyond_the_verified_rows():
    assert pairs(Step([1, 2, 9], 3, 2, CONFIDENCE, 0.1)) == [(0, True), (1, True)]
    assert pairs(Step([9], 1, 0, CONFIDENCE, 0.1), Step([9], 1, 0, None, 0.1)) == []


def test_nothing_is_counted_after_the_end_of_the_sequence():
    """A stop id ends it among accepted drafts."""
    assert pairs(Step([1, 7], 4, 3, CONFIDENCE, 0.1)) == [(0, True), (1, True)]


def test_figures():
    c = Calibration(
        np.array([0, 0, 1, 1]), np.array([0.91, 0.95, 0.55, 0.45]), np.array([1, 1, 1, 0], bool)
    )
    assert c.by_row() == [1.0, 0.5]
    assert c.brier == pytest.approx((0.09**2 + 0.05**2 + 0.45**2 + 0.45**2) / 4)
    # bins 0.9 (mean .93, 1), 0.5 (.55, 1), 0.4 (.45, 0)
    assert c.expected_error == pytest.approx((2 * 0.07 + 0.45 + 0.45) / 4)
    assert [b[2] for b in c.bins()] == [1, 1, 2]
