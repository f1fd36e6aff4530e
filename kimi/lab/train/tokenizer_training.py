"""Training of the small vocabulary: byte-level BPE in K3's file format.

The text is what `corpus` wrote, and generated text. Needs the `tokenizers` package (extra `train`);
takes a few seconds.
"""

import base64
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from kimi.assets import TINY_K3
from kimi.errors import InputError
from kimi.lab.train import dialogue, problems, stories
from kimi.text.tokenizer import CONFIG_FILE, RANKS_FILE, SPLIT_PATTERN

RANKS = 1792
"""Ordinary tokens of the shipped vocabulary; with the 256 control ids it has 2,048."""

_SEED = 1
_PROBLEMS, _STORIES = 12_000, 6_000
# One Bible and no glosses: Bibles read alike, and glosses are lists of rare words.
_PROSE = ("austen", "web", "devil", "jargon")

# Repeated so often that the fixed wording of a conversation costs few tokens.
_CHAT_REPEATS, _TALK_REPEATS = 2_000, 300
CHAT_TEXTS = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.",
    'message role="user"',
    'message role="assistant"',
    'message role="system"',
    "response",
    "think",
)
"""Texts that every conversation repeats, as `kimi.text.chat` writes them."""


def training_texts(corpus: Path) -> Iterator[str]:
    """The texts behind the shipped vocabulary: generated ones, then the prose below `corpus`/text.

    Raises: InputError, before the first text, if a prose file is missing.
    """
    prose = [_lines(corpus / "text" / f"{name}.txt") for name in _PROSE]
    return chain(_generated_texts(), chain.from_iterable(prose))


def _generated_texts() -> Iterator[str]:
    rng = random.Random(_SEED)
    for _ in range(_PROBLEMS):
        problem = problems.sample(rng)
        yield problem.question
        yield f"{problem.steps} {dialogue.answer_sentence(problem.answer)}"
    for _ in range(_STORIES):
        yield stories.sample(rng)
    yield from CHAT_TEXTS * _CHAT_REPEATS
    for openings, reply in dialogue.SMALL_TALK:
        yield from (*openings, reply) * _TALK_REPEATS


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def train(texts: Iterable[str], ranks: int) -> list[bytes]:
    """Learn a vocabulary.

    Numbers are split into single digits here and into up to three digits when encoding, so no
    merge ever joins digits: a number is always spelled digit by digit.

    Args:
      texts: the training texts.
      ranks: tokens wanted, at least 256.

    Returns: the tokens in rank order: the 256 single bytes in byte order, then the merges.
    Raises: InputError if `tokenizers` is missing or the texts do not yield enough merges.
    """
    try:
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    except ImportError:
        raise InputError("tokenizers: not installed: bash scripts/setup.sh train") from None
    bpe = Tokenizer(models.BPE())
    digits = SPLIT_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(digits), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=ranks,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    by_id = sorted(bpe.get_vocab().items(), key=lambda entry: entry[1])
    byte_of = _byte_of_character()
    tokens = [bytes(byte_of[character] for character in text) for text, _ in by_id]
    if len(tokens) != ranks:
        raise InputError(f"vocabulary: expected {ranks} tokens, the texts yield {len(tokens)}")
    merges = [token for token in tokens if len(token) > 1]
    return [bytes([b]) for b in range(256)] + merges


def write(directory: Path, tokens: Sequence[bytes]) -> None:
    """Write a vocabulary as `Tokenizer.from_dir` reads it, control ids right after the tokens.

    The control tokens keep the names and the relative places they have in the shipped vocabulary.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    (directory / RANKS_FILE).write_bytes(b"".join(lines))
    config = json.loads((TINY_K3 / CONFIG_FILE).read_text(encoding="utf-8"))
    moved = len(tokens) - RANKS
    config["added_tokens_decoder"] = {
        str(int(token_id) + moved): entry
        for token_id, entry in config["added_tokens_decoder"].items()
    }
    (directory / CONFIG_FILE).write_text(json.dumps(config, indent=1), encoding="utf-8")


def _byte_of_character() -> dict[str, int]:
    """Inverse of byte-level BPE's alphabet: unprintable bytes are the letters from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
