"""`preshard`, on the small K3."""

import json
import os

import pytest

from kimi.assets import TINY_K3
from kimi.cli.main import main
from kimi.loading import folder


def fails(capsys, *argv) -> str:
    assert main(["preshard", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "store"
    options = ["--model", str(TINY_K3), "--ranks", "2", "--experts", "fp8"]
    assert main(["preshard", "--out", str(path), *options]) == 0
    return path


def test_writing_and_verifying(store, capsys):
    argv = ["preshard", "--out", str(store), "--verify"]
    assert main([*argv, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    size = report.pop("bytes")
    assert report == {
        "store": str(store), "ranks": 2, "mesh": "TP2xEP1", "experts": "fp8", "verified": True,
    }  # fmt: skip
    assert main([*argv, "--model", str(TINY_K3), "--mesh", "2", "--experts", "fp8"]) == 0
    text = capsys.readouterr().out
    assert text == f"{store}: verified: 2 ranks (TP2xEP1), experts fp8, {size:,} bytes\n"


def test_again(store, capsys):
    argv = ["--out", str(store), "--model", str(TINY_K3), "--mesh", "2", "--experts", "fp8"]
    assert main(["preshard", *argv]) == 0
    assert f"{store}: complete: 2 ranks" in capsys.readouterr().out


def test_shares(store, tmp_path, capsys, monkeypatch):
    """Asked for, or those of the hosts of a launch."""
    path = tmp_path / "shared"
    argv = ["preshard", "--out", str(path), "--model", str(TINY_K3), "--mesh", "2", "--experts",
            "fp8"]  # fmt: skip
    assert main([*argv, "--share", "1/2"]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: share 1 of 2 is written; the store is")
    assert main([*argv, "--share", "1/2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {"store": str(path), "share": {"index": 1, "count": 2}, "complete": False}
    monkeypatch.setenv("KIMI_HOST_INDEX", "0")
    monkeypatch.setenv("KIMI_HOST_COUNT", "2")
    assert main(argv) == 0
    assert f"{path}: complete: 2 ranks" in capsys.readouterr().out
    assert (path / "manifest.json").read_bytes() == (store / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--share", "1"], "--share: expected I/N, as in 0/4, found '1'"),
        (["--share", "4/4"], "share: expected an index from 0 to 3, found 4"),
        ([], "--model: expected it, or --verify, found neither"),
        (["--model", "m", "--experts", "fp8"], "--ranks: expected it"),
        (["--model", "m", "--mesh", "1"], "--experts: expected it"),
        (["--verify", "--mesh", "4"], "mesh: expected 4 ranks, found 2"),
        (["--verify", "--experts", "mxfp4"], "experts: expected mxfp4, found fp8"),
        (["--model", str(TINY_K3), "--mesh", "4", "--experts", "fp8"], r"mesh: expected [4, 1], f"),
        (["--model", str(TINY_K3), "--mesh", "32", "--experts", "fp8"], "multiple of 32 ranks"),
        (["--model", "/no/such", "--mesh", "1", "--experts", "fp8"], "found neither"),
        (["--share", "0/0"], "share: count: expected at least 1, found 0"),
        (["--out", __file__], "test_preshard.py: expected a folder, found a file"),
        (["--out", __file__, "--verify"], "expected the folder of a store, found a file"),
        (["--out", "/kimi-no-such/store"], "expected the folder /kimi-no-such, found none"),
        (["--out", "/kimi-no-such"], "it is not made in /: mkdir /kimi-no-such"),
    ],
)
def test_bad_options(store, capsys, options, message):
    assert message in fails(capsys, "--out", str(store), *options)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--memory", "0"], "--memory: expected a number above 0, found '0'"),
        (["--memory", "nan"], "--memory: expected a number above 0, found 'nan'"),
        (["--memory", "inf"], "--memory: expected a number above 0, found 'inf'"),
        (["--out", ""], "--out: expected a name, found ''"),
    ],
)
def test_options_that_are_no_values(store, capsys, options, message):
    with pytest.raises(SystemExit) as ended:
        main(["preshard", "--out", str(store), "--verify", *options])
    assert ended.value.code == 2 and f"error: {message}" in capsys.readouterr().err


def test_a_second_writer(store, capsys):
    argv = ["--out", str(store), "--model", str(TINY_K3), "--mesh", "2", "--experts", "fp8"]
    with folder.held(store, [0]):
        text = fails(capsys, *argv)
    assert text.startswith(f"error: {store}: is being written by process {os.getpid()} on ")


def test_a_damaged_file_is_named_and_written_again(store, capsys):
    file = store / "rank-01" / "layer-002.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert str(file) in fails(capsys, "--out", str(store), "--verify")
    test_again(store, capsys)
    assert file.read_bytes() == whole


def test_verifying_nothing(capsys, tmp_path):
    assert "no such file: no store" in fails(capsys, "--out", str(tmp_path / "x"), "--verify")
