import json

import pytest

from kimi.lab.bench import codecs as bench
from kimi.lab.main import main


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bench, "EXPERT_SHAPES", ((64, 256), (64, 256), (64, 128)))
    monkeypatch.setattr(bench, "_PASSES", 1)


def test_json_has_every_figure(small, capsys):
    assert main(["bench-codecs", "--json", "--experts", "1"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert set(figures) == {
        "copy_gb_per_s",
        "mxfp4_to_fp8_gb_per_s",
        "mxfp4_to_float32_gb_per_s",
        "extra_memory_per_input_byte",
    }
    assert all(figures[name] >= 0 for name in figures)


def test_text_names_every_figure(small, capsys):
    assert main(["bench-codecs", "--experts", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[0].startswith("experts: 1, of 3 weights each")


def test_refuses_no_experts(capsys):
    assert main(["bench-codecs", "--experts", "0"]) == 2
    assert "expected at least 1, found 0" in capsys.readouterr().err
