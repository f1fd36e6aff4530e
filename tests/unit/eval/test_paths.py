"""The same answers by every way of decoding.

All 50 problems: `pytest -m slow tests/unit/eval/test_paths.py -k fifty` (2 minutes on idle cores);
through the interpreted kernel: `python eval/paths.py --paths reference kernel kernel-drafted`.
"""

import json
import sys

import pytest

import paths
from kimi.api import Engine


def run(monkeypatch, tmp_path, *options) -> list[dict]:
    rows = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["paths.py", *map(str, options), "--json", str(rows)])
    code = paths.main()
    found = json.loads(rows.read_text())
    assert code == int(any(row["different"] for row in found))
    return found


@pytest.fixture
def loaded(monkeypatch, tiny):
    """The small K3 for every path of the reference, instead of loading it for each."""
    monkeypatch.setattr(paths, "open_path", lambda name, args: Engine(tiny, "reference"))


def test_drafted_and_plain(loaded, monkeypatch, tmp_path):
    for row in run(monkeypatch, tmp_path, "--count", 4):
        assert row["identical"] == row["right"] == 4, row["path"]


@pytest.mark.slow
def test_drafted_and_plain_fifty(monkeypatch, tmp_path):
    for row in run(monkeypatch, tmp_path, "--count", 50):
        assert row["identical"] == row["right"] == 50, row["path"]


@pytest.mark.slow
def test_the_kernel(monkeypatch, tmp_path):
    names = ["reference", "kernel", "kernel-drafted"]
    options = ["--count", 3, "--max-tokens", 80, "--paths", *names]
    for row in run(monkeypatch, tmp_path, *options):
        assert row["identical"] == row["right"] == 3, row["path"]


def test_a_difference_is_found(loaded, monkeypatch, tmp_path, capsys):
    decode = paths.decode

    def wrong(name, *others):
        found = decode(name, *others)
        if name == "reference-drafted":
            found[1].answer.ids[0] += 1
        return found

    monkeypatch.setattr(paths, "decode", wrong)
    plain, drafted = run(monkeypatch, tmp_path, "--count", 2, "--max-tokens", 4)
    assert plain["different"] == [] and drafted["different"] == [1]
    assert "different: [1]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, message",
    [
        (["--count", "0"], "--count: expected 1 to 256 questions, found 0"),
        (["--backend", "kernel"], "--backend: expected --paths alone"),
        (["--data", "/no/such.csv"], "/no/such.csv: no such file"),
    ],
)
def test_bad_options(monkeypatch, capsys, options, message):
    monkeypatch.setattr(sys, "argv", ["paths.py", *options])
    assert paths.main() == 2
    assert message in capsys.readouterr().err
