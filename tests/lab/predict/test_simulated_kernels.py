"""The simulator on kernels that the compiler has just compiled."""

import json
from dataclasses import replace

import pytest

from kimi.lab.predict.costs import ALLOWED, JOINT
from kimi.lab.predict.drawing import draw_svg, perfetto_json
from kimi.lab.predict.links import Slice
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.report import report_json, report_text, step_report
from kimi.lab.predict.scalars import signed
from kimi.lab.predict.simulate import partition_words, simulate
from kimi.lab.predict.timeline import HBM_TRACK, LINK_TRACK, Window, buffer_names, record
from kimi.lab.predict.trace import Trace, trace_of
from tests.lab.predict.kernels import SCALAR_OPS

HOST = Slice((2, 2, 1))

PAIRS = [(17, 5), (-17, 5), (17, -5), (-17, -5), (4, 4), (100, 7), (3, 1000), (0, 3)]


@pytest.mark.parametrize("pair", PAIRS)
def test_scalar_operations_have_the_values_of_the_source(built, pair):
    kernel = built("scalars").kernel()
    [prediction] = simulate(kernel.program, inputs=KernelInputs({0: pair}))
    assert prediction.problems == [] and prediction.unknown == {}
    [output] = {name for name, _ in prediction.smem}
    found = {name: prediction.smem[output, n] for n, name in enumerate(SCALAR_OPS)}
    expected = {name: source(*pair) & 0xFFFFFFFF for name, (_, source) in SCALAR_OPS.items()}
    assert {k: signed(v) for k, v in found.items()} == {k: signed(v) for k, v in expected.items()}


def test_scalar_operations_include_the_divider(built):
    program = built("scalars").kernel().program
    assert any(i.opcode.startswith("sdivrem") for b in program.bundles for i in b.instructions)


@pytest.mark.parametrize("total,by", [(24, 4), (23, 3), (24, 12), (9, 9), (2, 3)])
def test_ring_runs_the_trip_count_and_drains(built, total, by):
    """`total // by` tiles through three slots: the count, the bytes and every semaphore."""
    kernel = built("ring").kernel()
    [prediction] = simulate(kernel.program, inputs=KernelInputs({0: (total, by)}))
    tiles = total // by
    assert prediction.problems == [] and prediction.unknown == {}
    tile_bytes = 256 * 256 * 4
    copied = sum(n for copy, n in prediction.copies.items() if copy.source == "input 1")
    assert copied == tiles
    # Beside the tiles at most the trip count and the result: XLA may keep both in VMEM.
    assert 0 <= prediction.hbm_bytes - tiles * tile_bytes <= 512 + 16 * 256 * 4
    assert sum(prediction.loops.values()) == max(tiles - 1, 0)
    assert ("tile" in prediction.scopes) == (tiles > 0)


def test_division_by_zero_is_noted_not_fatal(built):
    [prediction] = simulate(built("scalars").kernel().program, inputs=KernelInputs({0: (7, 0)}))
    assert any("division by zero" in problem for problem in prediction.problems)


def test_exchange_rounds_bytes_and_costs(built):
    compiled = built("exchange")
    kernel = compiled.kernel()
    inputs = KernelInputs(words=partition_words(kernel.allocations, 3), rank=3)
    plain = replace(JOINT, floor_us=())
    models = plain, replace(plain, latency_us=plain.latency_us + 1), replace(plain, clock_ghz=2.2)
    first, slow, fast = simulate(kernel.program, models, inputs, where=HOST)
    assert first.problems == []
    assert first.exchange_rounds == 3
    assert first.signal_rounds == 1
    assert first.ici_bytes == 3 * 7 * 8 * 128 * 4
    assert first.messages == 3 * 7
    # Four of the peers are over x, from both cores of a chip.
    assert first.link_bytes == 3 * 4 * 2 * 8 * 128 * 4
    # Four rounds of one latency each: the barrier and the three exchanges.
    assert slow.us - first.us == pytest.approx(4.0, abs=0.01)
    assert fast.us < first.us
    assert first.cycles == pytest.approx(first.parts.total)


def test_a_trace_takes_as_long_as_its_run(built):
    kernel = built("exchange").kernel()
    inputs = KernelInputs(words=partition_words(kernel.allocations, 0))
    trace = trace_of(kernel.program, inputs, HOST)
    kept = Trace.of(json.loads(json.dumps(trace.fields())))
    for found in simulate(kernel.program, ALLOWED, inputs, where=HOST):
        assert trace.us(found.costs) == kept.us(found.costs) == pytest.approx(found.us, rel=1e-3)


def test_missing_wait_is_reported(built):
    [prediction] = simulate(built("leaky_exchange").kernel().program)
    assert len(prediction.undrained) == 2
    assert any("nonzero value upon exit" in halt for halt in prediction.halts)


def test_report_holds_the_figures(built):
    compiled = built("exchange")
    kernel = compiled.kernel("exchange")
    report = step_report("tiny", compiled, kernel, simulate(kernel.program, ALLOWED))
    data = json.loads(report_json(report))
    assert data["memory"]["VMEM"]["used_bytes"] >= (8 + 1) * 8 * 128 * 4
    assert data["compilation"]["families"] == {"0": 8 * 128 * 4}
    assert data["compilation"]["code_bytes"] > 0 and data["bundles"] == len(kernel.program.bundles)
    assert [p["cost_model"]["name"] for p in data["predicted"]] == [k.name for k in ALLOWED]
    assert data["exchange_rounds"] == 3
    text = report_text(report)
    assert "predicted" in text and "VMEM" in text and "3 rounds" in text


def test_timeline_of_one_iteration(built):
    kernel = built("ring").kernel()
    timeline = record(
        kernel.program,
        Window(index=8),
        inputs=KernelInputs({0: (96, 4)}),
        names=buffer_names(kernel.allocations),
        title="ring <2>",
    )
    whole = simulate(kernel.program, inputs=KernelInputs({0: (96, 4)}))[0]
    assert 0 < timeline.begin < timeline.end < whole.cycles
    assert HBM_TRACK in timeline.tracks and "mxu0" in timeline.tracks
    assert any(span.kind == "scope" and span.name == "tile" for span in timeline.spans)
    assert any("f32[3,256,256]" in span.name for span in timeline.spans)
    svg = draw_svg(timeline)
    assert svg.startswith("<svg") and "predicted" in svg and "ring &lt;2&gt;" in svg
    trace = json.loads(perfetto_json(timeline))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == len(timeline.spans)
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert names == set(timeline.tracks)


def test_timeline_of_a_scope_shows_the_exchange(built):
    timeline = record(built("exchange").kernel().program, Window(scope="exchange", index=1))
    kinds = {span.kind for span in timeline.spans}
    assert {"exchange", "remote", "scope"} <= kinds
    assert len([span for span in timeline.spans if span.track == LINK_TRACK]) == 7
