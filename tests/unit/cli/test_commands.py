"""The commands on good input."""

import io
import json

import numpy as np
import pytest

from kimi.assets import TINY_K3
from kimi.cli.main import COMMANDS, main
from tests.conftest import DATA
from tests.tolerances import K3_GOLDEN

PROBLEM = (
    "Mia has 3 boxes with 7 apples in each. She gives 5 apples to Tom. How many apples does Mia "
    "have left?"
)


def run(capsys, *argv) -> str:
    """Runs a command line that must succeed; returns its standard output."""
    assert main(argv) == 0
    return capsys.readouterr().out


def test_logits_equal_the_golden(capsys, tmp_path):
    golden = DATA / "k3_tiny"
    out = tmp_path / "logits.npy"
    ids = (golden / "ids.txt").read_text()
    text = run(capsys, "logits", "--model", str(golden), "--ids", ids, "--out", str(out))
    assert text == f"{out}: logits [17, 512] float32\n"
    logits = np.load(out)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, np.load(golden / "logits.npy"), rtol=0, atol=K3_GOLDEN)
    assert [p.name for p in tmp_path.iterdir()] == ["logits.npy"]


def test_logits_in_bfloat16_are_near_but_not_equal(capsys, tmp_path):
    """bfloat16 has 8 bits: about 1 % of the largest logit, unless an expert choice flips."""
    golden, out = DATA / "k3_tiny", tmp_path / "b.npy"
    argv = ["--model", str(golden), "--ids", "3,10,17", "--out", str(out), "--dtype", "bfloat16"]
    result = json.loads(run(capsys, "logits", *argv, "--json"))
    assert result["shape"] == [3, 512]
    difference = abs(np.load(out) - np.load(golden / "logits.npy")[:3])
    assert 1e-4 < np.median(difference) < 0.2


def test_generate_streams_and_sums_up(capsys):
    assert main(["generate", PROBLEM, "--compare", "--max-tokens", "64"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == "3 * 7 = 21. 21 - 5 = 16. The answer is 16."
    for part in ("tokens/s:", "steps:", "mean acceptance length:"):
        assert part in captured.err
    assert captured.err.rstrip().endswith("identical to plain greedy decoding: yes")


def test_generate_in_bfloat16(capsys):
    """Long prompts too: products of every shape exist in the published arithmetic."""
    argv = ["generate", PROBLEM, "--max-tokens", "64", "--json", "--dtype", "bfloat16"]
    report = json.loads(run(capsys, *argv))
    assert report["response"] == "3 * 7 = 21. 21 - 5 = 16. The answer is 16."
    assert report["acceptance_length"] > 4


@pytest.mark.parametrize("options", [["--no-draft"], ["--verify", "off"]], ids=str)
def test_generate_plainly(capsys, options):
    argv = ["generate", PROBLEM, "--max-tokens", "64", "--json", "--thinking", "max", *options]
    report = json.loads(run(capsys, *argv))
    assert report["think"] == "3 * 7 = 21. 21 - 5 = 16."
    assert report["response"] == "The answer is 16."
    assert report["acceptance_length"] == 1 and report["finish_reason"] == "stop"


def test_generate_from_standard_input_raw(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.read", lambda: "It was a fine day", raising=False)
    report = json.loads(run(capsys, "generate", "-", "--raw", "--max-tokens", "5", "--json"))
    assert (
        report["tokens"] == 5 and report["finish_reason"] == "length" and "response" not in report
    )


def test_inspect(capsys):
    text = run(capsys, "inspect", str(TINY_K3))
    assert "num_experts                  32" in text and "problems: none" in text
    report = json.loads(run(capsys, "inspect", str(TINY_K3 / "dspark"), "--json"))
    assert report["config"]["block_size"] == 8 and report["problems"] == []
    assert report["total_bytes"] == sum(t["nbytes"] for t in report["tensors"])


def test_inspect_says_what_is_missing(capsys, tmp_path):
    for file in TINY_K3.iterdir():
        if file.name != "model-00002-of-000007.safetensors":
            (tmp_path / file.name).symlink_to(file)
    assert main(["inspect", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "model-00002-of-000007.safetensors" in captured.out
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1


def test_every_command_has_help(capsys):
    for command in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert stopped.value.code == 0
        assert COMMANDS[command] in " ".join(capsys.readouterr().out.split())


def test_chat_reads_a_line_a_turn(capsys, monkeypatch):
    """Empty lines are skipped; one that cannot be answered is reported, and the chat continues."""
    lines = [
        "Mia has 6 boxes with 8 pencils in each. How many pencils are there in all?",
        "",
        "x" * 900,
    ]
    lines += ["Tom has 3 apples and buys 4 more. How many apples does he have now?"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    assert main(["chat", "--context", "256", "--max-tokens", "40"]) == 0
    shown, reported = capsys.readouterr()
    first, second = shown.splitlines()
    assert "48" in first and "7" in second
    assert reported.count("error: prompt: ") == 1 and reported.count("first after") == 2
