import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.errors import InputError
from kimi.lab.main import main
from kimi.lab.train import corpus
from kimi.lab.train.sources import Source
from kimi.text.tokenizer import Tokenizer


@settings(max_examples=100, deadline=None)
@given(count=st.integers(corpus.BLOCKS, 400))
def test_split_keeps_every_paragraph_once(count: int):
    paragraphs = [f"paragraph {i}" for i in range(count)]
    train, held_out = corpus.split(paragraphs)
    size = count // corpus.BLOCKS
    assert held_out == ["\n\n".join(paragraphs[20 * size : 21 * size])]
    rejoined = "\n\n".join([*train[:20], *held_out, *train[20:]])
    assert rejoined == "\n\n".join(paragraphs)


def test_split_needs_a_paragraph_for_every_block():
    with pytest.raises(InputError, match="expected at least 40 paragraphs, found 39"):
        corpus.split(["x"] * 39)


def test_tokenise_shuffles_training_documents_only(tokenizer: Tokenizer, tmp_path: Path):
    texts = [[f"{source} {i}." for i in range(41)] for source in ("one", "two")]
    prose = corpus.tokenise(texts, tokenizer)
    assert tokenizer.decode(prose.val) == "one 20.[EOS]two 20.[EOS]"
    documents = tokenizer.decode(prose.train).split("[EOS]")[:-1]
    expected = [f"{source} {i}." for source in ("one", "two") for i in range(41) if i != 20]
    assert documents != expected and sorted(documents) == sorted(expected)
    prose.save(tmp_path / "prose.npz")
    loaded = corpus.Prose.load(tmp_path / "prose.npz")
    assert (loaded.train == prose.train).all() and (loaded.val == prose.val).all()
    assert loaded.train.dtype == np.uint16


def test_load_names_the_file(tmp_path: Path):
    np.savez(tmp_path / "other.npz", train=np.zeros(3))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:50])
    (tmp_path / "empty.npz").touch()
    for name in ("missing.npz", "other.npz", "cut.npz", "empty.npz"):
        with pytest.raises(InputError, match=f"{name}: expected train and val token ids"):
            corpus.Prose.load(tmp_path / name)


def test_shipped_held_out_prose_is_the_original(tokenizer: Tokenizer):
    prose = corpus.heldout_prose()
    assert (prose.shape, prose.dtype) == ((216_318,), np.uint16)
    digest = hashlib.sha256(prose.astype("<u2").tobytes()).hexdigest()
    assert digest == "6e57c773b5592a613e905c2925de2ee9f2f2765671f09f6916a9dd63e6d7048a"
    documents = tokenizer.decode(prose).split("[EOS]")
    assert len(documents) == 7 and documents[-1] == ""
    again = [[*tokenizer.encode(text), tokenizer.special.eos] for text in documents[:-1]]
    assert sum(again, []) == prose.tolist()


def put_program(directory: Path, name: str, script: str) -> None:
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of stand-in programs, first on the search path."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return directory


def test_fetch_downloads_once(tmp_path: Path, programs: Path):
    put_program(programs, "apt-get", 'echo "$@" >> log; touch "$2_1.0_all.deb"')
    for _ in range(2):
        assert corpus.fetch("some-text", tmp_path) == tmp_path / "some-text_1.0_all.deb"
    assert (tmp_path / "log").read_text() == "download some-text\n"


def test_fetch_reports_an_unknown_package(tmp_path: Path, programs: Path):
    put_program(programs, "apt-get", 'printf "E: Unable to locate\n package $2\n" >&2; exit 100')
    with pytest.raises(InputError) as caught:
        corpus.fetch("some-text", tmp_path)
    assert str(caught.value) == (
        "package some-text: cannot be downloaded: E: Unable to locate package some-text"
    )


def test_fetch_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="apt-get not found"):
        corpus.fetch("some-text", tmp_path)


def test_fetch_refuses_two_versions(tmp_path: Path):
    for version in (1, 2):
        (tmp_path / f"some-text_{version}_all.deb").touch()
    with pytest.raises(InputError, match="expected one file"):
        corpus.fetch("some-text", tmp_path)


@pytest.fixture
def one_source(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus directory whose only source is a package that holds a list of lines."""

    def read(root: Path) -> list[str]:
        return (root / "lines").read_text().split()

    put_program(programs, "dpkg-deb", 'cp "$2" "$3/lines"')
    monkeypatch.setattr(corpus, "SOURCES", (Source("lines", ("some-text",), read),))
    packages = tmp_path / "out" / "packages"
    packages.mkdir(parents=True)
    (packages / "some-text_1.0_all.deb").write_text("\n".join(f"word{i}" for i in range(80)))
    return tmp_path / "out"


def test_command_builds_everything(
    one_source: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
):
    assert main(["corpus", "--out", str(one_source)]) == 0
    printed = capsys.readouterr().out
    assert "lines: 80 paragraphs" in printed and "some-text_1.0_all" in printed
    assert len((one_source / "text" / "lines.txt").read_text().splitlines()) == 80
    prose = corpus.Prose.load(one_source / "prose.npz")
    assert tokenizer.decode(prose.val) == "word40\n\nword41[EOS]"
    with np.load(one_source / corpus.HELDOUT_FILE) as arrays:
        assert (arrays["val"] == prose.val).all()


def test_command_ends_with_one_line_on_bad_input(
    one_source: Path, programs: Path, capsys: pytest.CaptureFixture[str]
):
    put_program(programs, "dpkg-deb", "echo not a Debian archive >&2; exit 2")
    assert main(["corpus", "--out", str(one_source)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert error.endswith("cannot be unpacked: not a Debian archive\n")
