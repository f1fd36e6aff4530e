"""Kimi K3's byte-level BPE tokenizer, read from `tiktoken.model` and `tokenizer_config.json`.

The rank file defines the ordinary vocabulary, ids 0..n-1 (K3: n = 163584). The next 256 ids are
reserved for control tokens; `tokenizer_config.json` names some of them, the others are called
`<|reserved_token_{id}|>`. `encode` never yields control tokens: `<|open|>` in a user's text is
encoded as the bytes of that word.

Source: the checkpoint's tokenizer files and the split pattern of its tokenization_kimi.py.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsIndex

import tiktoken

from kimi.errors import TokenizerError
from kimi.files import read_bytes
from kimi.values import SURROGATE, integer, shown
from kimi.values import text as checked_text

RANKS_FILE = "tiktoken.model"
CONFIG_FILE = "tokenizer_config.json"
RESERVED_IDS = 256

# The model was trained with these limits, so they are part of the encoding, not a tuning choice.
# They count characters; whitespace is defined by `str.isspace`.
CHUNK_CHARS = 400_000
RUN_CHARS = 25_000

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT_PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        f"{_PREFIX}{_UPPER}*{_LOWER}+{_CONTRACTION}",
        f"{_PREFIX}{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

_RUN = re.compile(r"\s+|\S+")


_RESERVED = {
    "[BOS]": 0, "[EOS]": 1, "<|end_of_msg|>": 2, "<|open|>": 3, "<|close|>": 4, "<|sep|>": 5,
    "[PAD]": 255,
}  # fmt: skip
"""Name in tokenizer_config.json -> offset from the number of ranks, in the order of SpecialIds."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the control tokens that this library uses."""

    bos: int
    eos: int
    end_of_msg: int
    open: int
    close: int
    sep: int
    pad: int


class Tokenizer:
    """Text to token ids and back.

    Methods that take ids raise TokenizerError if one is not an integer in [0, vocab_size).

    Attributes:
      vocab_size: ranks + 256; every id in [0, vocab_size) decodes.
      special: ids of the named control tokens.
      stop_ids: ids that end a generated message.
    """

    def __init__(self, ranks: dict[bytes, int], special_names: dict[int, str]) -> None:
        """Takes validated tables; to read a checkpoint use `from_dir`.

        Args:
          ranks: token bytes -> id, ids 0..n-1.
          special_names: id -> name of the 256 ids from n on.
        """
        self.vocab_size = len(ranks) + RESERVED_IDS
        self.special = SpecialIds(*(len(ranks) + offset for offset in _RESERVED.values()))
        self.stop_ids = frozenset({self.special.end_of_msg, self.special.eos, self.special.pad})
        self._encoding = tiktoken.Encoding(
            "kimi",
            pat_str=SPLIT_PATTERN,
            mergeable_ranks=ranks,
            special_tokens={name: i for i, name in special_names.items()},
        )

    @classmethod
    def from_dir(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Reads the two tokenizer files of a checkpoint directory.

        Raises: TokenizerError if a file is missing, malformed or does not fit the other one.
        """
        ranks = _read_ranks(Path(path) / RANKS_FILE)
        return cls(ranks, _read_special_names(Path(path) / CONFIG_FILE, len(ranks)))

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text, never a control id.

        Raises: InputError if it is not a string or has a lone surrogate, which UTF-8 cannot encode.
        """
        ids: list[int] = []
        for piece in split_long(checked_text("text", text)):
            ids += self._encoding.encode_ordinary(piece)
        return ids

    def decode_bytes(self, ids: Iterable[SupportsIndex]) -> bytes:
        """Bytes of the tokens, control tokens by name; may end within a UTF-8 character."""
        return self._encoding.decode_bytes(self.check_ids(ids))

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Text of the tokens, control tokens by name, malformed UTF-8 as U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def check_ids(self, ids: Iterable[SupportsIndex]) -> list[int]:
        """Converts the ids to plain integers."""
        try:
            listed = None if isinstance(ids, bytes | bytearray) else list(ids)
        except TypeError:
            listed = None
        if listed is None:
            raise TokenizerError(f"token ids: expected a list of integers, found {shown(ids)}")
        last = self.vocab_size - 1
        return [integer("token id", token_id, 0, last, TokenizerError) for token_id in listed]


def split_long(text: str, chunk: int = CHUNK_CHARS, run: int = RUN_CHARS) -> Iterator[str]:
    """Splits a long text into pieces that are encoded separately.

    The text is cut every `chunk` characters and, within each part, every `run` characters of
    contiguous whitespace or non-whitespace.
    """
    for begin in range(0, len(text), chunk):
        part = text[begin : begin + chunk]
        start = 0
        if len(part) > run:
            for stretch in _RUN.finditer(part):
                for cut in range(stretch.start() + run, stretch.end(), run):
                    yield part[start:cut]
                    start = cut
        yield part[start:]


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Token bytes -> rank; the ranks are exactly 0..n-1 and every single byte is a token."""
    ranks: dict[bytes, int] = {}
    line_of_rank: dict[int, int] = {}
    for number, line in enumerate(read_bytes(path, TokenizerError).split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        token, rank = _parse_rank_line(line, where)
        if token in ranks:
            first = line_of_rank[ranks[token]]
            raise TokenizerError(f"{where}: token {token!r} appears twice, first on line {first}")
        if rank in line_of_rank:
            first = line_of_rank[rank]
            raise TokenizerError(f"{where}: rank {rank} appears twice, first on line {first}")
        ranks[token] = rank
        line_of_rank[rank] = number
    if not ranks:
        raise TokenizerError(f"{path}: expected 'base64 rank' lines, found none")
    highest = max(line_of_rank)
    if highest != len(ranks) - 1:
        missing = next(r for r in range(highest) if r not in line_of_rank)
        raise TokenizerError(
            f"{path}: line {line_of_rank[highest]}: {len(ranks)} tokens need ranks "
            f"0..{len(ranks) - 1}, found rank {highest} and no rank {missing}"
        )
    absent = [b for b in range(256) if bytes([b]) not in ranks]
    if absent:
        raise TokenizerError(
            f"{path}: expected all 256 single-byte tokens, found none for byte "
            f"0x{absent[0]:02X} ({len(absent)} missing)"
        )
    return ranks


def _parse_rank_line(line: bytes, where: str) -> tuple[bytes, int]:
    fields = line.split()
    if len(fields) != 2:
        raise TokenizerError(f"{where}: expected 'base64 rank', found {len(fields)} fields")
    encoded, rank = fields
    try:
        token = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        token = b""
    if not token or base64.b64encode(token) != encoded:
        raise TokenizerError(f"{where}: expected a base64 token, found {encoded[:40]!r}")
    if not rank.isdigit() or len(rank) > 9:
        raise TokenizerError(f"{where}: expected a whole-number rank, found {rank[:40]!r}")
    return token, int(rank)


def _read_special_names(path: Path, n_ranks: int) -> dict[int, str]:
    """Id -> name of the 256 control ids; those of `_RESERVED` must have their names and ids."""
    low, high = n_ranks, n_ranks + RESERVED_IDS - 1
    names = {i: f"<|reserved_token_{i}|>" for i in range(low, high + 1)}
    reserved = {str(i) for i in names}
    for key, entry in _added_tokens(path).items():
        where = f"{path}: added_tokens_decoder[{key!r}]"
        if key not in reserved:
            raise TokenizerError(
                f"{where}: expected a reserved id {low}..{high} ({n_ranks} ranks), found {key}"
            )
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content or SURROGATE.search(content):
            raise TokenizerError(f"{where}: expected a 'content' string, found {shown(content)}")
        names[int(key)] = content
    where = f"{path}: added_tokens_decoder"
    id_of: dict[str, int] = {}
    for i, name in names.items():
        if id_of.setdefault(name, i) != i:
            raise TokenizerError(f"{where}: {name!r} names both {id_of[name]} and {i}")
    for name, offset in _RESERVED.items():
        if id_of.get(name) != low + offset:
            raise TokenizerError(
                f"{where}: expected {name!r} at id {low + offset} ({n_ranks} ranks + {offset}), "
                f"found {id_of.get(name, 'no such token')}"
            )
    return names


def _added_tokens(path: Path) -> dict[str, object]:
    try:
        config = json.loads(read_bytes(path, TokenizerError))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not valid JSON ({error})") from None
    added = config.get("added_tokens_decoder") if isinstance(config, dict) else None
    if not isinstance(added, dict):
        raise TokenizerError(
            f"{path}: added_tokens_decoder: expected an object, found {type(added).__name__}"
        )
    return added
