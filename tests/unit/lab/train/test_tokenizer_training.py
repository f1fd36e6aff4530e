import importlib.util
import random
import sys
from pathlib import Path

import pytest

from kimi.assets import TINY_K3
from kimi.errors import InputError
from kimi.lab.main import main
from kimi.lab.train import stories
from kimi.lab.train import tokenizer_training as training
from kimi.text.chat import encode_chat
from kimi.text.tokenizer import Tokenizer

needs_tokenizers = pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None, reason="needs the extra 'train'"
)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = random.Random(0)
    return [stories.sample(rng) for _ in range(30)] + ["1234 5678 1234 5678"] * 50


@needs_tokenizers
def test_trained_vocabulary_loads_and_encodes(texts: list[str], tmp_path: Path):
    tokens = training.train(texts, 400)
    assert tokens[:256] == [bytes([b]) for b in range(256)]
    assert len(set(tokens)) == len(tokens) == 400
    training.write(tmp_path / "vocabulary", tokens)
    tokenizer = Tokenizer.from_dir(tmp_path / "vocabulary")
    assert tokenizer.vocab_size == 656
    assert tokenizer.decode([tokenizer.special.end_of_msg]) == "<|end_of_msg|>"
    ids = tokenizer.encode(texts[0])
    assert tokenizer.decode(ids) == texts[0]
    assert len(ids) < len(texts[0].encode()) / 2


@needs_tokenizers
def test_numbers_are_never_merged(texts: list[str]):
    assert not [t for t in training.train(texts, 400) if any(c in b"0123456789" for c in t[1:])]


@needs_tokenizers
def test_too_little_text(tmp_path: Path):
    with pytest.raises(InputError, match="expected 400 tokens, the texts yield"):
        training.train(["one two"], 400)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match="tokenizers: not installed: bash scripts/setup.sh train"):
        training.train(["one two"], 300)


def test_writing_the_shipped_tokens_gives_the_shipped_files(tokenizer: Tokenizer, tmp_path: Path):
    tokens = [tokenizer.decode_bytes([i]) for i in range(training.RANKS)]
    training.write(tmp_path, tokens)
    for name in ("tiktoken.model", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (TINY_K3 / name).read_bytes()


def test_chat_texts_are_what_the_chat_format_writes(tokenizer: Tokenizer):
    messages = [{"role": role, "content": "x"} for role in ("system", "user")]
    written = "".join(
        tokenizer.decode(encode_chat(messages, tokenizer, thinking=t)) for t in ("off", "low")
    )
    assert all(text in written for text in training.CHAT_TEXTS)


def test_missing_prose_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train-tokenizer", "--corpus", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    path = tmp_path / "text" / "austen.txt"
    assert error == f"error: {path}: cannot be read (No such file or directory)\n"
