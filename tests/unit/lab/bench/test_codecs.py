import json

import pytest

from kimi.codecs import bench


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bench, "EXPERT_SHAPES", ((64, 256), (64, 256), (64, 128)))
    monkeypatch.setattr(bench, "_PASSES", 1)


def test_json_has_every_figure(small, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "--json", "--experts", "1"])
    bench.main()
    figures = json.loads(capsys.readouterr().out)
    assert set(figures) == {
        "copy_gb_per_s",
        "mxfp4_to_fp8_gb_per_s",
        "mxfp4_to_float32_gb_per_s",
        "extra_memory_per_input_byte",
    }
    assert all(figures[name] >= 0 for name in figures)


def test_text_names_every_figure(small, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "--experts", "1"])
    bench.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[0].startswith("experts: 1, of 3 weights each")


def test_refuses_no_experts(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "--experts", "0"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "expected at least 1, found 0" in capsys.readouterr().err
