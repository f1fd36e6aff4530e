"""Start-up in processes of their own."""

import json

import pytest

from kimi.assets import TINY_K3
from kimi.errors import InputError
from kimi.lab.bench import start
from kimi.lab.main import main

FIGURES = {
    "imports": 2.0, "loading": 0.25, "compiling": 0.5, "prompt": 0.0625, "first": 0.0625,
    "rest": 0.125, "total": 3.0, "compiled": 0, "read": 4,
}  # fmt: skip


def test_figures_are_shown_by_phase(monkeypatch, capsys):
    monkeypatch.setattr(start, "_run", lambda model, environment: start.Start(**FIGURES))
    assert main(["bench-start"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["seconds", "cold", "warm"]
    assert ["loading", "0.25", "0.25"] in lines and ["read", "4", "4"] in lines
    assert main(["bench-start", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"cold": FIGURES, "warm": FIGURES}


def test_both_runs_have_one_empty_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    seen = []
    monkeypatch.setattr(start, "_run", lambda model, environment: seen.append(environment))
    start.measure("m")
    assert seen[0] == seen[1] and "JAX_COMPILATION_CACHE_DIR" not in seen[0]
    assert "kimi-bench-" in seen[0]["KIMI_CACHE_DIR"]


def test_a_model_that_is_not_there_is_one_line():
    with pytest.raises(InputError, match="^/nowhere: expected a folder or a hub repository"):
        start.measure("/nowhere")


@pytest.mark.slow
def test_a_second_run_compiles_nothing():
    runs = start.measure(str(TINY_K3))
    cold, warm = runs["cold"], runs["warm"]
    assert (cold.compiled, cold.read) == (4, 0)
    assert (warm.compiled, warm.read) == (0, 4)
    for run in (cold, warm):
        phases = run.imports + run.loading + run.compiling + run.prompt + run.first + run.rest
        assert phases == pytest.approx(run.total, abs=1e-3)
    assert warm.compiling < cold.compiling / 3
