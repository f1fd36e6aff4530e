"""The table of drafted decoding, of figures made for the tests."""

import pytest

from kimi.lab.main import main
from kimi.lab.predict.bands import Band
from kimi.lab.predict.end_to_end import (
    ACCEPTANCE,
    PARTS,
    REST,
    Drafted,
    end_to_end_fields,
    end_to_end_text,
    peer_speed,
)
from kimi.lab.predict.loops import LoopOptions


def drafted(greedy: bool, *step_ms: float, bundles: int = 1000) -> Drafted:
    parts = dict.fromkeys((*PARTS, REST), Band(0.5, 0.25, 0.75))
    return Drafted(LoopOptions(greedy=greedy), parts, step_ms, (0.1,) * len(step_ms), {}, bundles)


def test_speeds_are_tokens_of_a_step_over_its_time():
    program = drafted(True, 6.0, 5.0, 8.0)
    band = program.speed(6.0)
    assert (band.central, band.low, band.high) == pytest.approx((1000, 750, 1200))
    assert (program.step.low, program.step.high) == (5.0, 8.0)


def test_the_peer_is_published_at_six_tokens_and_computed_elsewhere():
    assert ACCEPTANCE == (3.84, 4.1, 6.0)
    assert peer_speed(6.0) == (709.0, "published")
    speed, source = peer_speed(3.84)
    assert speed == pytest.approx(3840 / 8.46) and source == "of its 8.46 ms"


def test_both_forms_hold_every_figure():
    programs = (drafted(True, 6.0, 5.0), drafted(False, 8.0, 7.0, bundles=70_000))
    text, (greedy, sampled) = end_to_end_text(programs), end_to_end_fields(programs)
    for part in ("6.00 (5.00 to 6.00)", "709 published", "640 (640 to 768)", "temperature 1, top-p",
                 "warning: temperature 1, top-p: code: 70000 bundles"):  # fmt: skip
        assert part in text
    assert greedy["predicted_parts_ms"]["draft"] == {"central": 0.5, "low": 0.25, "high": 0.75}
    assert greedy["predicted_step_ms"] == {"central": 6.0, "low": 5.0, "high": 6.0}
    assert [s["tokens_per_step"] for s in sampled["speeds"]] == list(ACCEPTANCE)
    assert sampled["speeds"][2]["predicted_tokens_per_second"]["central"] == 750


@pytest.mark.parametrize("more", [("--compare",), ("--context", "9"), ("--model", "x")])
def test_other_reports_are_not_mixed_with_it(capsys, more):
    assert main(["predict", "--end-to-end", *more]) == 2
    assert "--end-to-end: expected no --model, --compare" in capsys.readouterr().err


def test_recording_belongs_to_the_calibration(capsys):
    assert main(["predict", "--record"]) == 2
    assert "--record: expected --calibrate with it" in capsys.readouterr().err
