from dataclasses import replace

import pytest

from kimi.errors import InputError
from kimi.lab.train.recipe import FULL, SMOKE, Budget

BUDGET = Budget(seconds=100, peak=2.0, decay=0.65, warmup=10)


@pytest.mark.parametrize(
    ("elapsed", "step", "rate"),
    [
        (0, 0, 0.2),  # first step of ten
        (1, 9, 2.0),
        (34, 500, 2.0),  # before the decay
        (67.5, 900, 1.0),  # half-way through it
        (99.35, 999, 0.02),
        (101, 1000, 0.0),
    ],
)
def test_rate_follows_wall_time(elapsed, step, rate):
    assert BUDGET.rate(BUDGET.fraction(elapsed, step), step) == pytest.approx(rate)


def test_steps_end_a_run_too():
    short = replace(BUDGET, steps=4)
    assert short.fraction(1, 2) == 0.5
    assert short.fraction(90, 2) == 0.9
    assert short.fraction(1, 4) == 1


def test_wall_time_can_be_replaced():
    longer = FULL.lasting("target", 60).lasting("drafter", 30)
    assert (longer.target.budget.seconds, longer.drafter.budget.seconds) == (60, 30)
    assert longer.target.batch == FULL.target.batch
    for bad in (0, -1, float("nan")):
        with pytest.raises(InputError, match="seconds: expected more than 0"):
            FULL.lasting("target", bad)


@pytest.mark.parametrize("recipe", [FULL, SMOKE])
def test_sizes_fit_together(recipe):
    assert 0 < recipe.target.prose_rows < recipe.target.batch
    assert recipe.target.pool % 16 == 0
    assert recipe.scores.answers % recipe.scores.prompts == 0
