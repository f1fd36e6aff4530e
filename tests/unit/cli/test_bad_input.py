"""Every mistake of a user gives a one-line error, without a traceback, and exit code 2."""

import json
import os
import re
import shutil
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kimi.assets import TINY_K3
from kimi.cli.main import main
from tests import waiting
from tests.conftest import DATA

SHARD = "model-00003-of-000007.safetensors"


def fails(capsys, *argv) -> str:
    """Runs a command line that must fail; returns its one line."""
    assert main(argv) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), captured.err
    assert "Traceback" not in captured.err and captured.out == ""
    return lines[0]


@pytest.fixture
def broken(tmp_path):
    """A copy of the small K3 whose files may be damaged (links, until one is rewritten)."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in TINY_K3.iterdir():
        (folder / file.name).symlink_to(file)
    return folder


def rewrite(folder, change) -> None:
    """Replaces a shard by one whose tensors `change` has edited."""
    tensors = load_file(folder / SHARD)
    change(tensors)
    (folder / SHARD).unlink()
    save_file(tensors, folder / SHARD)


NORM = "language_model.model.layers.2.input_layernorm.weight"


def logits(folder, tmp_path) -> list[str]:
    return ["logits", "--model", str(folder), "--ids", "1 2", "--out", str(tmp_path / "out.npy")]


def test_missing_shard(capsys, broken, tmp_path):
    (broken / SHARD).unlink()
    line = fails(capsys, *logits(broken, tmp_path))
    assert SHARD in line and str(broken) in line


def test_truncated_shard(capsys, broken, tmp_path):
    data = (broken / SHARD).read_bytes()
    (broken / SHARD).unlink()
    (broken / SHARD).write_bytes(data[:-1000])
    line = fails(capsys, *logits(broken, tmp_path))
    assert SHARD in line and line.count(str(broken)) == 1
    assert re.search(r"truncated: expected \d+ bytes of data, found \d+$", line)


def test_wrong_dtype(capsys, broken, tmp_path):
    rewrite(broken, lambda t: t.update({NORM: t[NORM].astype(np.float16)}))
    line = fails(capsys, *logits(broken, tmp_path))
    assert NORM in line and "F16" in line


def test_nan_weights(capsys, broken, tmp_path):
    def poison(tensors):
        value = np.array(tensors[NORM])
        value[7] = ml_dtypes.bfloat16(np.nan)
        tensors[NORM] = value

    rewrite(broken, poison)
    line = fails(capsys, *logits(broken, tmp_path))
    assert NORM in line and "nan" in line and "[7]" in line


def test_missing_tensor(capsys, broken, tmp_path):
    rewrite(broken, lambda t: t.pop(NORM))
    assert NORM in fails(capsys, *logits(broken, tmp_path))


def test_no_such_model(capsys, tmp_path):
    line = fails(capsys, "generate", "hello", "--model", str(tmp_path / "nothing"))
    assert "nothing" in line and "found neither" in line


@pytest.mark.parametrize(
    "ids,message",
    [
        ("1 512", "--ids: token 1: expected an id from 0 to 511, found 512"),
        ("-1", "--ids: token 0: expected an id from 0 to 511, found -1"),
        ("1 x", "--ids: token 1: expected an integer, found 'x'"),
        ("1 " + "9" * 5000, "--ids: token 1: expected an integer, below 2**63, found '999"),
        (" ", "--ids: expected at least one token id, found none"),
        ("1 " * 4097, "--ids: expected at most 4096 (the model's context), found 4097"),
    ],
)
def test_bad_ids(capsys, tmp_path, ids, message):
    argv = ["--model", str(DATA / "k3_tiny"), "--out", str(tmp_path / "o.npy")]
    assert message in fails(capsys, "logits", *argv, f"--ids={ids}")


@pytest.mark.parametrize(
    "argv,message",
    [
        ([""], "prompt: expected some text, found none"),
        (["  \n"], "prompt: expected some text, found none"),
        (["", "--raw"], "prompt: expected some text, found none"),
        (["hi", "--temperature", "-1"], "temperature: expected a number from 0 (greedy) to 100"),
        (["hi", "--temperature", "nan"], "temperature: expected a number"),
        (["hi", "--top-p", "0"], "top_p: expected a number above 0 and up to 1, found 0.0"),
        (["hi", "--seed", "-1"], "seed: expected an integer from 0"),
        (["hi", "--max-tokens", "0"], "max tokens: expected at least 1, found 0"),
        (["hi", "--max-tokens", "5000"], "expected at most 4096 together (the model's context"),
        (["apple " * 5000], "expected at most 4096 together (the model's context"),
        (["hi", "--rows", "9"], "rows: expected a number from 1 to 8 (block_size), found 9"),
        (["hi", "--rows", "4", "--verify", "off"], "--rows: expected --verify fixed, found"),
        (["hi", "--costs", "x.json"], "--costs: expected --verify adaptive, found --verify fixed"),
        (["hi", "--verify", "adaptive", "--costs", "no.json"], "no.json: no such file"),
        (["hi", "--raw", "--system", "x"], "--system: expected a chat, found --raw"),
        (["hi", "--compare", "--temperature", "1"], "--compare: expected --temperature 0"),
        (["\ud800"], "surrogate"),
        (["hi", "--drafter", "/no/such"], "expected a folder or a hub repository"),
    ],
)
def test_bad_generate_options(capsys, argv, message):
    assert message in fails(capsys, "generate", *argv)


def test_a_model_without_drafter(capsys, broken):
    (broken / "dspark").unlink()
    line = fails(capsys, "generate", "hi", "--model", str(broken))
    assert "expected a drafter in dspark/ or --drafter, found none" in line


def test_a_drafter_for_another_model(capsys):
    line = fails(capsys, "generate", "hi", "--drafter", str(DATA / "dspark_sliding"))
    assert "vocab_size: expected the target's 2048, found 512" in line


def test_unwritable_output(capsys, tmp_path):
    common = ["logits", "--model", str(DATA / "k3_tiny"), "--ids", "1", "--out"]
    assert "there is no folder" in fails(capsys, *common, str(tmp_path / "no" / "o.npy"))
    assert "it is a folder" in fails(capsys, *common, str(tmp_path))
    if os.geteuid():  # root may write anywhere
        tmp_path.chmod(0o500)
        assert "permission denied" in fails(capsys, *common, str(tmp_path / "o.npy"))


def test_a_config_of_another_model(capsys, broken, tmp_path):
    data = json.loads((broken / "config.json").read_text())
    data["text_config"]["hidden_act"] = "silu"
    (broken / "config.json").unlink()
    (broken / "config.json").write_text(json.dumps(data))
    line = fails(capsys, *logits(broken, tmp_path))
    assert "config.json.text_config: hidden_act: expected 'situ'" in line


def test_a_damaged_tokenizer(capsys, broken):
    lines = (TINY_K3 / "tiktoken.model").read_bytes().splitlines(keepends=True)
    (broken / "tiktoken.model").unlink()
    (broken / "tiktoken.model").write_bytes(b"".join(lines[1:]))
    assert "tiktoken.model" in fails(capsys, "generate", "hi", "--model", str(broken))


def test_as_a_process(tmp_path):
    """The same through a real process: one line on stderr, nothing else, exit code 2."""
    shutil.copytree(DATA / "k3_tiny", tmp_path / "m")
    with open(tmp_path / "m" / "model.safetensors", "r+b") as f:
        f.truncate(1000)
    done = waiting.run([sys.executable, "-m", "kimi", *logits(tmp_path / "m", tmp_path)])
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
