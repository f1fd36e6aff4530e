"""GSM8K and GPQA from the command line to the report, with the small K3."""

import json
import random
import sys
from pathlib import Path

import pytest

import gpqa
import gsm8k
from kimi.errors import InputError
from scoring import extraction, run
from scoring.extraction import letter
from scoring.records import read

GPQA_COLUMNS = ("Question", *gpqa.OPTIONS)


def script(monkeypatch, module, *options) -> int:
    """Runs a script's main as its command line would."""
    monkeypatch.setattr(sys, "argv", ["script", *map(str, options)])
    build = module.build_parser if hasattr(module, "build_parser") else gpqa_parser
    return run.main(build(), module.make_task)


def gpqa_parser():
    return run.parser("gpqa", "about")


def fails(monkeypatch, capsys, module, *options) -> str:
    assert script(monkeypatch, module, *options) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture
def gpqa_file(tmp_path):
    file = tmp_path / "gpqa_diamond.csv"
    rows = [",".join(f'"{c}"' for c in GPQA_COLUMNS)]
    rows += [f'"Question {i}, please?",right {i},w1,w2,w3' for i in range(8)]
    file.write_text("\n".join(rows), encoding="utf-8")
    return file


def test_gsm8k_answers_scores_and_goes_on(engine, monkeypatch, capsys, tmp_path):
    out, report = tmp_path / "a.jsonl", tmp_path / "r.json"
    common = ["--out", out, "--thinking", "low", "--json", report]
    assert script(monkeypatch, gsm8k, "--count", 2, *common) == 0
    first = out.read_text()
    assert script(monkeypatch, gsm8k, "--count", 4, *common) == 0
    assert out.read_text().startswith(first), "answers that are there are not made again"
    found = json.loads(report.read_text())
    assert found["n"] == found["questions"] == 4 and found["truncated"] == 0
    assert found["flexible"]["accuracy"] == 1 and found["acceptance_length"] > 5
    assert found["settings"]["thinking"] == "low" and len(found["runs"]) == 2
    captured = capsys.readouterr()
    assert "2 answers kept" in captured.err and "flexible  accuracy 1.0000" in captured.out
    _, answers = read(out)
    assert [a["question"] for a in answers] == [0, 1, 2, 3]
    for a in answers:
        assert a["response"] == f"The answer is {a['expected']}." and "<|open|>" in a["output"]
        assert a["finish"] == "stop" and a["tokens"] > a["steps"] > 0 < a["decode_seconds"]
        assert a["acceptance_length"] == round(a["tokens"] / a["steps"], 4)
    # The fifth question of the same file is not asked for: a smaller count reports less.
    assert script(monkeypatch, gsm8k, "--count", 1, *common) == 0
    assert json.loads(report.read_text())["n"] == 1


def test_samples_are_seeded_and_differ(engine, monkeypatch, tmp_path):
    outputs = []
    for name in "ab":
        out = tmp_path / f"{name}.jsonl"
        options = ["--count", 1, "--samples", 3, "--temperature", 3, "--max-tokens", 12]
        assert script(monkeypatch, gsm8k, *options, "--seed", 5, "--out", out) == 0
        outputs.append([a["output"] for a in read(out)[1]])
    assert outputs[0] == outputs[1] and len(set(outputs[0])) == 3


def test_a_truncated_answer_is_counted_and_wrong(engine, monkeypatch, tmp_path):
    report = tmp_path / "r.json"
    options = ["--count", 1, "--max-tokens", 3, "--out", tmp_path / "a.jsonl", "--json", report]
    assert script(monkeypatch, gsm8k, *options, "--verify", "off") == 0
    found = json.loads(report.read_text())
    assert found["truncated"] == found["without_answer"] == 1 and found["acceptance_length"] == 1
    assert found["flexible"]["accuracy"] == 0, "numbers among the thoughts are no answer"


def test_gsm8k_asks_for_the_form_of_the_answer(monkeypatch, tmp_path):
    file = tmp_path / "test.jsonl"
    file.write_text(json.dumps({"question": "How many?", "answer": "None at all.\n#### 1,000"}))
    args = gsm8k.build_parser().parse_args(["--data", str(file)])
    task = gsm8k.make_task(args)
    item = task.ask(0, 0)
    assert item.prompt == f"How many?\n\n{gsm8k.INSTRUCTION}" and item.expected == "1000"
    assert args.max_tokens == gsm8k.TOKENS and task.source.startswith("test.jsonl ")
    file.write_text(json.dumps({"question": "How many?", "answer": "1000"}))
    with pytest.raises(InputError, match="test.jsonl: row 1: answer: expected '#### <number>'"):
        gsm8k.make_task(args)


def test_gpqa_runs(engine, monkeypatch, tmp_path, gpqa_file):
    out = tmp_path / "a.jsonl"
    options = ["--data", gpqa_file, "--count", 1, "--max-tokens", 8, "--out", out]
    assert script(monkeypatch, gpqa, *options) == 0
    (answer,) = read(out)[1]
    assert "Question 0, please?" in answer["prompt"] and answer["expected"] in "ABCD"
    assert answer["correct"]["flexible"] == (answer["extracted"]["flexible"] == answer["expected"])


def test_gpqa_shuffles_by_seed_question_and_sample(gpqa_file):
    def task(seed: int):
        argv = ["--data", str(gpqa_file), "--seed", str(seed)]
        return gpqa.make_task(gpqa_parser().parse_args(argv))

    one, again, other = task(0), task(0), task(1)
    letters = [[t.ask(q, s).expected for q in range(8) for s in range(4)] for t in (one, other)]
    assert letters[0] != letters[1] and set(letters[0]) == set("ABCD")
    for question in random.Random(0).sample(range(8), 4):
        item = one.ask(question, 2)
        assert item == again.ask(question, 2), "the same in every run"
        assert f"({item.expected}) right {question}\n" in item.prompt
        assert sum(f") {w}\n" in item.prompt for w in ("w1", "w2", "w3")) == 3
    assert letter(f"The answer is ({item.expected}).")["strict"] == item.expected


@pytest.mark.parametrize(
    "options, message",
    [
        (["--count", "257"], "--count: expected at most 256 questions, found 257"),
        (["--count", "0"], "--count: expected at least 1, found 0"),
        (["--samples", "0"], "--samples: expected at least 1, found 0"),
        (["--max-tokens", "0"], "--max-tokens: expected at least 1, found 0"),
        (["--max-tokens", "9999"], "expected at most 4096 together (the model's context"),
        (["--hub", "--data", "x.csv"], "--data: expected it or --hub, found both"),
        (["--data", "/no/such.csv"], "/no/such.csv: no such file"),
        (["--json", "/no/such/r.json"], "there is no folder /no/such"),
        (["--temperature", "-1"], "temperature: expected"),
        (["--max-tokens", "4000"], "max_position_embeddings), found 4"),
        (["--max-tokens", "4000"], ": give --max-tokens 3"),
        (["--out", "/no/such/a.jsonl"], "/no/such/a.jsonl: cannot be written: there is no folder"),
        (["--out", "."], ".: cannot be written: it is a folder, expected a file name"),
        (["--out", "/dev/full"], "/dev/full: cannot be written: expected a file that can be read"),
    ],
)
def test_bad_options(engine, monkeypatch, capsys, tmp_path, options, message):
    out = [] if "--out" in options else ["--out", tmp_path / "a.jsonl"]
    assert message in fails(monkeypatch, capsys, gsm8k, *options, *out)
    assert not Path("/no").exists()


def test_answers_of_another_extraction_are_not_mixed(engine, monkeypatch, capsys, tmp_path):
    out = tmp_path / "a.jsonl"
    options = ["--count", 1, "--max-tokens", 1, "--out", out]
    assert script(monkeypatch, gsm8k, *options) == 0
    old = out.read_text().replace(f', "extraction": {extraction.VERSION}', "")
    assert old != out.read_text()
    out.write_text(old)
    capsys.readouterr()
    line = fails(monkeypatch, capsys, gsm8k, *options)
    assert "a.jsonl: extraction: its answers were made with None, this run has" in line
    assert out.read_text() == old


def test_neighbours_are_decoded_together():
    assert list(run._groups([0, 1, 2, 3, 4, 7, 8, 11], 3)) == [(0, 1, 2), (3, 4), (7, 8), (11,)]
    assert list(run._groups([], 3)) == []


def test_progress_without_a_terminal(engine, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(run, "_LINE_SECONDS", 0.0)
    options = ["--count", 2, "--thinking", "off", "--out", tmp_path / "a.jsonl"]
    assert script(monkeypatch, gsm8k, *options) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "/2: " in line]
    assert len(said) == 2 and said[1].startswith("2/2: 1.0000 right, 0 truncated, ")


def test_no_folder_is_made_for_a_wrong_name(monkeypatch, capsys, tmp_path):
    line = fails(monkeypatch, capsys, gsm8k, "--out", tmp_path / "no" / "a.jsonl")
    assert "a.jsonl: cannot be written: there is no folder" in line
    assert not list(tmp_path.iterdir())
