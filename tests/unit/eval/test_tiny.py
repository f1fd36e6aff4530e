"""The scoring command on a few prompts."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import kimi

FILE = Path(kimi.__file__).parents[1] / "eval" / "tiny.py"


@pytest.fixture(scope="module")
def scoring():
    spec = importlib.util.spec_from_file_location("eval_tiny", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["eval_tiny"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_scores_and_files(scoring, tmp_path, capsys, monkeypatch):
    report, plot = tmp_path / "scores.json", tmp_path / "plot.png"
    argv = ["tiny.py", "--sets", "problems", "--problems", "4", "--json", str(report)]
    monkeypatch.setattr(sys, "argv", [*argv, "--plot", str(plot)])
    assert scoring.main() == 0
    scores = json.loads(report.read_text())["sets"]["problems"]
    assert scores["accuracy"] == 1 and scores["identical_to_plain"] == scores["prompts"] == 4
    assert scores["acceptance_length"] > 5
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "problems" in capsys.readouterr().out


def test_a_wrong_or_unfinished_answer_does_not_count(scoring, tiny):
    encode, special = tiny.tokenizer.encode, tiny.tokenizer.special

    def message(text: str) -> list[int]:
        end = [special.close, *encode("response"), special.sep]
        end += [special.close, *encode("message"), special.sep, special.end_of_msg]
        return encode(text) + end

    assert scoring.is_correct(message("1 + 1 = 2. The answer is 2."), 2, False, tiny)
    assert not scoring.is_correct(message("1 + 1 = 3. The answer is 3."), 2, False, tiny)
    assert not scoring.is_correct(message("The answer is 22."), 2, False, tiny)
    assert not scoring.is_correct(encode("The answer is 2."), 2, False, tiny)


def test_unwritable_report_is_said_before_the_work(scoring, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tiny.py", "--json", "/nonexistent/x.json"])
    assert scoring.main() == 2
    assert "there is no folder /nonexistent" in capsys.readouterr().err
