import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from kimi.errors import InputError
from kimi.lab.predict.costs import JOINT
from kimi.lab.predict.drawing import draw_svg, perfetto_json
from kimi.lab.predict.dump import parse_bundles
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.timeline import (
    HBM_TRACK,
    WAIT_TRACK,
    Span,
    Timeline,
    Window,
    longest_loop,
    record,
)
from tests.unit.lab.predict.snippets import EXCHANGE, LOOP

FIVE = KernelInputs({0: (0, 5)})


@pytest.mark.parametrize("index", [0, 1, 3, 4])
def test_each_iteration_has_its_copy(index):
    timeline = record(parse_bundles(LOOP), Window(index=index), inputs=FIVE)
    copies = [s for s in timeline.spans if s.track == HBM_TRACK and s.details["bytes"] == 4096]
    assert len(copies) == 1
    assert timeline.begin <= copies[0].begin < copies[0].end <= timeline.end
    assert copies[0].name == "input 1 → allocation3"
    assert [s.name for s in timeline.spans if s.track == "scope 0"] == ["tile"]


def test_scope_window():
    timeline = record(parse_bundles(LOOP), Window(scope="tile", index=2), inputs=FIVE)
    loop = record(parse_bundles(LOOP), Window(index=2), inputs=FIVE)
    assert loop.begin < timeline.begin < timeline.end < loop.end
    assert WAIT_TRACK in timeline.tracks


def test_window_that_never_comes_is_named():
    with pytest.raises(InputError, match="occurrence 9 of loop at 0x6, found 4"):
        record(parse_bundles(LOOP), Window(index=9), inputs=FIVE)
    with pytest.raises(InputError, match="'mixing'"):
        record(parse_bundles(LOOP), Window(scope="mixing"), inputs=FIVE)


def test_program_without_a_loop():
    assert longest_loop(parse_bundles(LOOP)) == 6
    with pytest.raises(InputError, match="loop"):
        longest_loop(parse_bundles(EXCHANGE))


def test_picture_is_well_formed_and_labelled():
    timeline = record(parse_bundles(LOOP), Window(index=1), inputs=FIVE, title="a & b")
    root = ElementTree.fromstring(draw_svg(timeline))
    texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("a & b" in text and "predicted" in text for text in texts)
    assert set(timeline.tracks) <= set(texts)


def test_names_are_not_written_over_each_other():
    """Copies of one track overlap in time; a name ends where the next bar begins."""
    spans = [
        Span(HBM_TRACK, "hbm", f"input {i} → a tile", 100 * i, 100 * i + 900) for i in range(9)
    ]
    spans += [Span(HBM_TRACK, "hbm", "the last one", 900, 9000)]
    drawn = ElementTree.fromstring(draw_svg(Timeline("t", JOINT, 0, 9000, spans)))
    svg = "{http://www.w3.org/2000/svg}"
    names = [t for t in drawn.iter(f"{svg}text") if t.text and t.text.startswith(("input", "the"))]
    assert [t.text for t in names] == ["the last one"]
    apart = [
        Span(HBM_TRACK, "hbm", f"input {i} → a tile", 900 * i, 900 * i + 1500) for i in range(9)
    ]
    drawn = ElementTree.fromstring(draw_svg(Timeline("t", JOINT, 0, 9000, apart)))
    places = [(float(t.get("x", 0)), t.text or "") for t in drawn.iter(f"{svg}text")]
    places = [(x, text) for x, text in places if text.startswith("input")]
    assert len(places) == 9 and all(
        x + 6.6 * len(text) <= after for (x, text), (after, _) in pairwise(places)
    )


def test_trace_times_are_relative_to_the_window():
    timeline = record(parse_bundles(LOOP), Window(index=1), inputs=FIVE)
    events = json.loads(perfetto_json(timeline))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    span_us = timeline.us(timeline.end)
    assert all(event["dur"] >= 0 and event["ts"] <= span_us for event in slices)
    assert max(event["ts"] + event["dur"] for event in slices) <= span_us + 1
