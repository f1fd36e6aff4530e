"""Verification schedules and cost tables."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.decoding.loop import choose_rows
from kimi.decoding.requests import request
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import PREDICTED_TPU_COSTS, Adaptive, CostTable, Fixed
from kimi.errors import ConfigError, InputError


def rows_of(schedule, confidence, running=None):
    """Of every sequence, for confidence [B, R]."""
    confidence = np.atleast_2d(np.asarray(confidence, np.float32))
    running = np.ones(len(confidence), bool) if running is None else np.asarray(running)
    samplings = [Sampling()] * len(confidence)
    found = choose_rows(
        jnp.asarray(confidence), jnp.asarray(running), request(9, frozenset(), schedule, samplings)
    )
    return found.tolist()


@given(st.lists(st.floats(0, 1, width=32), min_size=8, max_size=8), st.integers(2, 8))
@settings(max_examples=100, deadline=None)
def test_adaptive_is_the_best_choice(confidence, block):
    [rows] = rows_of(Adaptive(PREDICTED_TPU_COSTS), confidence[:block])
    assert 1 <= rows <= block

    def rate(r):
        survival = np.cumprod(confidence)
        return (1 + survival[: r - 1].sum()) / (
            PREDICTED_TPU_COSTS.draft + PREDICTED_TPU_COSTS.rows[r]
        )

    assert rate(rows) >= max(rate(r) for r in range(1, block + 1)) * (1 - 1e-6)  # float32


def test_certain_drafts_are_all_verified_and_hopeless_ones_not():
    adaptive = Adaptive(PREDICTED_TPU_COSTS)
    assert rows_of(adaptive, np.ones(8)) == [8]
    assert rows_of(adaptive, np.zeros(8)) == [1]
    assert rows_of(adaptive, [0.99, 0.99, 0.01, 0.9, 0.9, 0.9, 0.9, 0.9]) == [3]


def test_only_listed_numbers_of_rows_are_chosen():
    adaptive = Adaptive(CostTable(0.1, {1: 1.0, 4: 1.5}))
    assert rows_of(adaptive, np.ones(8)) == [4]
    assert rows_of(adaptive, np.ones(3)) == [1]


def test_fixed_never_exceeds_the_block():
    assert rows_of(Fixed(8), np.ones(5)) == [5]
    assert rows_of(Fixed(3), np.zeros((2, 5))) == [3, 3]
    with pytest.raises(InputError, match="rows: expected at least 1, found 0"):
        Fixed(0)


@given(
    st.lists(st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4), min_size=2, max_size=4),
    st.integers(0, 3),
)
@settings(max_examples=50, deadline=None)
def test_sequences_share_the_rows_of_a_step(confidence, ended):
    """As many in all as pay most, and those drafts that are most likely to survive."""
    running = np.arange(len(confidence)) != ended
    rows = rows_of(Adaptive(PREDICTED_TPU_COSTS), confidence, running)
    assert all(r == 1 for r, runs in zip(rows, running, strict=True) if not runs)
    survival = np.where(running[:, None], np.cumprod(confidence, 1)[:, :3], 0)
    count = running.sum()
    ranked = np.sort(survival[running].ravel())[::-1]

    def rate(total):
        return (count + ranked[: total - count].sum()) / (
            PREDICTED_TPU_COSTS.draft + PREDICTED_TPU_COSTS.rows[total]
        )

    total = sum(r for r, runs in zip(rows, running, strict=True) if runs)
    most = min(8, int(count) * 4)
    assert count <= total <= most
    chosen = sum(survival[i, : r - 1].sum() for i, r in enumerate(rows))
    assert chosen == pytest.approx(ranked[: total - count].sum(), rel=1e-5, abs=1e-30)
    assert rate(total) >= max(rate(t) for t in range(count, most + 1)) * (1 - 1e-6)


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda: CostTable(None, {1: 1}), "cost table: draft: expected a number, found None"),
        (lambda: CostTable(0, [1.0]), "cost table: rows: expected a mapping from rows to costs"),
        (lambda: CostTable(0, {1: "2"}), "cost table: 1: expected a number, found '2'"),
        (lambda: CostTable(0, {1: 1, 0: 1}), "cost table: rows: expected at least 1, found 0"),
        (lambda: CostTable(0, {1: 1, 2.5: 1}), "cost table: rows: expected an integer, found 2.5"),
        (lambda: CostTable(float("nan"), {1: 1}), "draft: expected a time above 0, found nan"),
        (lambda: CostTable.load(None), "cost table: expected a path or a hub id, found None"),
        (lambda: Adaptive({1: 1.0}), "costs: expected a CostTable, found {1: 1.0}"),
        (lambda: Fixed(2.0), "rows: expected an integer, found 2.0"),
        (lambda: Fixed(True), "rows: expected an integer, found True"),
    ],
)
def test_wrong_values_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_saved_cost_table_loses_nothing(tmp_path):
    """Whatever the unit of time is."""
    table = CostTable(np.float32(0), {np.int64(1): np.float64(2e-9), 8: 1 / 3})
    table.save(tmp_path / "costs.json")
    assert CostTable.load(tmp_path / "costs.json") == table


def test_cost_table_round_trip(tmp_path):
    PREDICTED_TPU_COSTS.save(tmp_path / "costs.json")
    loaded = CostTable.load(tmp_path / "costs.json")
    assert loaded.draft == PREDICTED_TPU_COSTS.draft
    for rows, cost in PREDICTED_TPU_COSTS.rows.items():
        assert loaded.rows[rows] == pytest.approx(cost, abs=1e-6)


@pytest.mark.parametrize(
    "text,message",
    [
        ('{"rows": {"1": 2}}', "draft: expected a value, found nothing"),
        ('{"draft": 1, "rows": {"2": 2}}', "expected a cost for 1 row"),
        ('{"draft": 1, "rows": {"1": 0}}', "1: expected a time above 0, found 0"),
        ('{"draft": 1, "rows": {"one": 1}}', "one: expected a number of rows as the key"),
        ('{"draft": 1, "rows": {"01": 1}}', "01: expected a number of rows as the key"),
        ('{"draft": 1, "rows": {"%s": 1}}' % ("9" * 5000), "expected a number of rows as the key"),
        ('{"draft": "x", "rows": {"1": 1}}', "draft: expected a number, found 'x'"),
        ("[]", "expected a JSON object, found list"),
        ("{", "not valid JSON"),
    ],
)
def test_bad_cost_tables_are_named(tmp_path, text, message):
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises((ConfigError, InputError), match=message):
        CostTable.load(tmp_path / "costs.json")
