"""What the `predict` command refuses, before anything is compiled, and how it shows a refusal."""

import json
from pathlib import Path

import pytest

from kimi.assets import TINY_K3
from kimi.lab.main import main
from kimi.lab.predict.compile import Buffer
from kimi.lab.predict.failures import CompileError, LargestBuffer
from kimi.lab.predict.launch import Refused

SMALL = ("--model", str(TINY_K3), "--topology", "tpu7x:2x2x1")


def fails(capsys, *argv) -> str:
    """Runs a command line that must fail; returns its one line."""
    assert main(["predict", *argv]) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), captured.err
    assert captured.out == ""
    return lines[0]


def test_without_libtpu(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = fails(capsys)
    assert "expected libtpu" in line and "bash scripts/setup.sh tpu" in line


@pytest.mark.parametrize(
    "argv,parts",
    [
        (["--rows", "9"], ["rows", "1 to 8", "found 9"]),
        (["--rows", "0"], ["rows", "1 to 8", "found 0"]),
        (["--context", "-1"], ["context", "at least 0", "found -1"]),
        (["--context", "99000000"], ["HBM", "MLA cache", "101.73 GB"]),
        (["--topology", "tpu6e:2x2"], ["topology", "tpu7x:AxBxC", "tpu6e:2x2"]),
        (["--topology", "tpu7x:2x3x1"], ["ranks", "found 12"]),
        (["--topology", "tpu7x:1x1x1"], ["VMEM", "63.90 MiB", "experts"]),
        (["--model", "/no/such"], ["/no/such/config.json", "no such file"]),
        (["--timeline", "layer.png"], ["--timeline", ".svg or .json", "layer.png"]),
        (["--timeline", "/no/such/layer.svg"], ["/no/such", "cannot be written"]),
        ([*SMALL, "--compare"], ["comparison", "published model", "tiny_k3"]),
        (["--rows", "3", "--verify", "--compare"], ["comparison", "a block of 3 rows"]),
        (["--rows", "8", "--compare"], ["comparison", "8 sequences"]),
        (["--rows", "8", "--costs", "c.json"], ["--costs", "expected --verify"]),
        (["--loop", "0"], ["--loop", "at least 1", "found 0"]),
        (["--loop", "8", "--compare"], ["--loop", "no --model, --compare"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if value and value[0].startswith("-") else "",
)
def test_bad_options_end_in_one_line(capsys, argv, parts):
    line = fails(capsys, *argv)
    for part in parts:
        assert part in line


def test_an_unknown_format_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["predict", "--experts", "int4"])
    assert "'mxfp4', 'fp8'" in capsys.readouterr().err.replace("mxfp4, fp8", "'mxfp4', 'fp8'")


def test_a_model_that_does_not_divide_is_refused(capsys, tmp_path):
    config = json.loads(Path(TINY_K3, "config.json").read_text())
    config["text_config"]["vocab_size"] = 2050
    (tmp_path / "config.json").write_text(json.dumps(config))
    line = fails(capsys, "--model", str(tmp_path), "--topology", "tpu7x:2x2x1")
    assert "vocab_size" in line and "2050" in line and "multiple of 8" in line


def test_a_refusal_of_the_compiler_is_shown_with_the_buffers(capsys, monkeypatch):
    largest = (LargestBuffer("80.00M", "f32[163840,128]", "scratch operand"),)
    error = CompileError("decode: VMEM: expected at most 64M, found 90M", largest=largest)
    buffers = [Buffer("ring", "vmem", 16 * 2**20), Buffer("experts", "vmem", 64 * 2**20)]

    def refuse(*_):
        raise Refused(error, buffers)

    monkeypatch.setattr("kimi.lab.commands.predict.predict", refuse)
    assert main(["predict"]) == 2
    shown = capsys.readouterr().err
    assert shown.rstrip().endswith("error: decode: VMEM: expected at most 64M, found 90M")
    assert "buffer table of the program" in shown and "f32[163840,128]" in shown
    assert shown.index("64.00 MiB") < shown.index("16.00 MiB")
