"""The cost models against what was measured in public: the gate of every predicted figure."""

import pytest

from kimi.lab.predict.calibration import (
    EXCEPTIONS,
    GATED,
    REPLICAS,
    TOLERANCE,
    calibrate,
    calibration_fields,
    calibration_text,
    read_traces,
    write_traces,
)
from kimi.lab.predict.costs import ALLOWED, FREE, JOINT, PER_MESSAGE


@pytest.fixture(scope="module")
def traces():
    return read_traces()


@pytest.fixture(scope="module")
def rows(traces):
    return calibrate(traces)


def test_the_best_model_is_right_to_a_tenth(rows):
    """Collectives, layers and both K3 steps; an exception has its reason."""
    off = {row.fact.name for row in rows if row.fact.kind in GATED and not row.within}
    assert off <= set(EXCEPTIONS), {r.fact.name: r.ratio for r in rows if r.fact.name in off}
    assert sum(row.fact.kind in GATED for row in rows) >= 20


def test_exceptions_are_facts_that_are_off(rows):
    by_name = {row.fact.name: row for row in rows}
    assert set(EXCEPTIONS) <= set(by_name) and all(EXCEPTIONS.values())
    assert not any(by_name[name].within for name in EXCEPTIONS)
    # No fact of another kind is off without a reason either.
    assert {name for name, row in by_name.items() if not row.within} == set(EXCEPTIONS)


def test_no_other_model_fits_as_well(rows):
    """Over collectives, layers and K3: the largest distance of the best model is the least."""
    gated = [row for row in rows if row.fact.kind in GATED and not row.fact.exception]
    worst = [
        max(abs(row.predicted[n] / row.fact.central - 1) for row in gated)
        for n, model in enumerate(ALLOWED)
    ]
    assert ALLOWED[0] is JOINT and worst[0] == min(worst) < TOLERANCE
    # Those between which nothing public decides: what a message costs.
    assert max(worst[ALLOWED.index(m)] for m in (FREE, PER_MESSAGE)) < 0.35


def test_the_table_holds_every_fact(rows):
    text, fields = calibration_text(rows, ALLOWED), calibration_fields(rows, ALLOWED)
    assert len(fields) == len(rows)
    for row, data in zip(rows, fields, strict=True):
        assert row.fact.name in text and data["fact"] == row.fact.name
        assert set(data["predicted_us"]) == {model.name for model in ALLOWED}
        assert data["ratio"] == pytest.approx(row.ratio, abs=1e-4)


def test_traces_are_kept_as_they_are(traces, tmp_path):
    recordings = {f"{name} x{n}" for name, replica in REPLICAS.items() for n in replica.turns}
    assert set(traces) == recordings
    few = {name: traces[name] for name in ("AG bf16 [8, 512] x2", "sibling 16 MiB x10")}
    for file in (tmp_path / "one.gz", tmp_path / "two.gz"):
        write_traces(few, file)
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()
    for name, found in read_traces(tmp_path / "one.gz").items():
        assert found.us(JOINT) == few[name].us(JOINT)


def test_a_slower_network_never_makes_a_collective_faster(traces):
    slow = PER_MESSAGE.__class__("slow", message_us=0.5, latency_us=3.0, link_bytes_s=5e10)
    for fast, late in zip(calibrate(traces, [JOINT]), calibrate(traces, [slow]), strict=True):
        if fast.fact.kind == "collectives":
            assert late.predicted[0] > fast.predicted[0], fast.fact.name
