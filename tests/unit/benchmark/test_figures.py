"""Figures from steps whose times and acceptance are known."""

import pytest

from kimi.api import Engine
from kimi.benchmark import figures
from kimi.benchmark.measure import Options, Pair, Run, decode
from kimi.decoding.schedule import CostTable
from kimi.decoding.stats import Stats, Step

# (rows verified, drafts accepted, seconds)
STEPS = [(4, 3, 0.1), (4, 0, 0.3), (2, 1, 0.2), (1, 0, 0.2)]


def run(steps=STEPS, first=0.5):
    history = [Step([0] * (a + 1), r, a, None, seconds) for r, a, seconds in steps]
    stats = Stats(first_token_seconds=first, finish="length", history=history)
    return Run([7] * sum(len(step.tokens) for step in history), stats)


def test_three_figures_that_are_not_each_other():
    r = figures.Rates.of([run()])
    assert r.steps == 4 and r.tokens == 8
    assert r.step_ms == pytest.approx(200) and r.steps_per_second == pytest.approx(5)
    assert r.tokens_per_step == 2 and r.tokens_per_second == pytest.approx(10)


def test_without_timed_steps_there_are_no_rates():
    r = figures.Rates.of([run([])])
    assert (r.steps, r.tokens) == (0, 0)
    assert r.step_ms is r.tokens_per_step is r.steps_per_second is r.tokens_per_second is None
    assert figures.spread([]) is None


def test_percentiles():
    assert figures.spread(range(101)) == {"p50": 50, "p90": 90, "p99": 99}


def test_acceptance_by_position():
    """Positions 1 to 3 of blocks of 4, 4, 2 and 1 rows, of which 3, 0, 1 and 0 were accepted."""
    found = figures.acceptance_by_position(run().stats.history)
    counts = [(p["verified"], p["reached"], p["accepted"]) for p in found]
    assert counts == [(3, 3, 2), (2, 1, 1), (2, 1, 1)]
    assert [p["share_of_verified"] for p in found] == [2 / 3, 1 / 2, 1 / 2]
    assert [p["share_of_reached"] for p in found] == [2 / 3, 1, 1]
    assert figures.acceptance_by_position([Step([1], 1, 0, None, 0.1)]) == []


def test_shares_weigh_the_rows_that_were_verified():
    costs = CostTable(10.0, {1: 20.0, 2: 30.0, 4: 55.0})
    found = figures.shares(costs, run().stats.history, 60.0)
    assert found["draft_ms"] == 10 and found["verify_ms"] == (55 + 55 + 30 + 20) / 4
    assert found["draft_share"] == 0.2 and found["verify_share"] == 0.8
    assert found["rest_ms"] == 10


def test_both_ways_together():
    plain = run([(1, 0, 0.1)] * 8)
    other = run([(1, 0, 0.1)] * 7 + [(1, 0, 0.9)], first=1.5)
    other.ids[0] = 3
    costs = CostTable(1.0, {1: 1.0, 2: 1.0, 4: 1.0})
    found = figures.of_pairs([Pair(5, plain, run()), Pair(6, other, run())], costs)
    assert found["identical_to_plain"] == 1
    assert found["plain"]["tokens_per_second"] == pytest.approx(16 / 2.4)
    assert found["speedup"] == pytest.approx(10 / (16 / 2.4))
    assert found["plain"]["time_to_first_token_ms_over_requests"]["p50"] == 1000
    assert found["plain"]["step_ms_over_requests"]["p50"] == pytest.approx(150)
    assert found["drafted"]["rows_per_step"] == 11 / 4
    assert [r["prompt_tokens"] for r in found["requests"]] == [5, 6]


def test_every_step_is_timed(tiny):
    """The recorded times are those of the statistics, all of them."""
    found = decode(Engine(tiny, "reference"), [5, 6, 7], Options(4, 40, stops=False), "off")
    assert len(found.seconds) == found.stats.steps == 4 and min(found.seconds) > 0
    assert sum(found.tokens) == len(found.ids) == 4
    assert found.stats.first_token_seconds >= found.seconds[0]
