"""The `predict` command on the small K3, for the smallest slice that the compiler knows."""

import json

import pytest

from kimi.assets import TINY_K3
from kimi.lab.main import main
from kimi.lab.predict.costs import ALLOWED

SMALL = ("--model", str(TINY_K3), "--topology", "tpu7x:2x2x1", "--context", "200")
PARTS = {"total", "issue", "interlocks", "exchange", "hbm", "local"}


@pytest.fixture(scope="module")
def as_json(tmp_path_factory):
    """The report of a block of three rows, and a picture of an MLA layer."""
    picture = tmp_path_factory.mktemp("predict") / "layer.svg"
    argv = ["predict", *SMALL, "--rows", "3", "--verify", "--json", "--layer", "mla"]
    with pytest.MonkeyPatch.context() as patch:
        lines = []
        patch.setattr("kimi.lab.commands.predict.print_json", lines.append)
        assert main([*argv, "--timeline", str(picture)]) == 0
    [report] = lines
    return json.loads(json.dumps(report)), picture.read_text()


def test_the_report_has_the_figures(as_json):
    report, _ = as_json
    assert report["title"].endswith(
        "a block of 3 rows after 200 tokens, mxfp4 experts, tpu7x:2x2x1"
    )
    assert report["problems"] == [] and report["unknown_scalars"] == {}
    assert set(report["memory"]) == {"VMEM", "SMEM", "semaphores", "HBM"}
    held = report["compilation"]["families"]
    moved = report["hbm_bytes_by_family"]
    for family in ("dense", "vectors", "experts", "embedding", "KDA states", "MLA cache"):
        assert held[family] > 0 and moved[family] > 0
    assert moved["dense"] == held["dense"]
    assert report["hbm_bytes_per_step"] == sum(moved.values())
    assert report["exchanges_per_layer"] == {"KDA + dense": 5, "KDA + MoE": 8, "MLA + MoE": 8}
    assert report["compilation"]["code_bytes"] > 0 and report["bundles"] > 1000
    assert report["compilation"]["compile_s"] > 0


def test_the_prediction_has_its_parts(as_json):
    report, _ = as_json
    assert [p["cost_model"]["name"] for p in report["predicted"]] == [m.name for m in ALLOWED]
    times = [p["predicted_us"] for p in report["predicted"]]
    band = {"central": times[0], "low": min(times), "high": max(times)}
    assert report["predicted_band_us"] == pytest.approx(band)
    beside = report["predicted_beside_us"]
    assert set(beside) == {"cache_append", "copy of opened"} and all(beside.values())
    assert report["messages_per_layer"] > 7 and report["fullest_link_bytes_per_layer"] > 0
    for prediction in report["predicted"]:
        parts = prediction["predicted_parts_us"]
        assert set(parts) == PARTS
        assert parts["total"] == pytest.approx(prediction["predicted_us"])
        scopes = prediction["predicted_scopes_us"]
        assert {"kda_delta", "mla_attend", "choose", "experts", "head"} <= set(scopes)
        assert sum(s["total"] for s in scopes.values()) == pytest.approx(parts["total"], abs=0.05)
    waits = {wait["semaphore"] for wait in report["predicted_waits_us"]}
    assert {"attention_gather received", "layer_gather received"} <= waits


def test_the_picture_shows_one_layer(as_json):
    _, svg = as_json
    assert svg.startswith("<svg") and "MLA + MoE" in svg
    for name in (
        "mla_attend",
        "experts → experts",
        "attention_gather_send → attention_gather_receive",
    ):
        assert name in svg
    assert "kda_delta" not in svg


def test_the_text_and_the_trace(capsys, tmp_path):
    trace = tmp_path / "layer.json"
    assert main(["predict", *SMALL, "--timeline", str(trace)]) == 0
    text = capsys.readouterr().out
    for part in ("VMEM", "KDA states", "exchanges", "predicted step", "longest waits", "kda_out"):
        assert part in text
    assert "warning" not in text
    assert "note:" not in text and "over the allowed cost models: " in text
    assert "messages, " in text and "over its fullest link between chips" in text
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["name"] for event in events}
    assert {"kda_delta", "experts → experts", "HBM copies"} <= names | {
        event["args"].get("name") for event in events if event["ph"] == "M"
    }
    assert "mla_attend" not in names
