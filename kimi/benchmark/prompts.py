"""Where a benchmark's prompts come from: a file, the small model's prompt sets, or random ids."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kimi.api import Engine
from kimi.assets import PROMPTS
from kimi.errors import InputError
from kimi.text.chat import encode_chat

DEFAULT_REQUESTS = 8
_SEED = 0  # of random ids: the same on all hosts, and in every run


@dataclass(frozen=True)
class Prompts:
    """Prompts of a run.

    Attributes:
      source: where they are from, for the report.
      ids: of each prompt, at least one.
      text: whether they are text: only then does a stop id mean that an answer has ended.
    """

    source: str
    ids: list[list[int]]
    text: bool


def built_in(engine: Engine, requests: int) -> Prompts:
    """Word problems (every other one with thinking) and requests for stories, in turn.

    Raises:
      InputError: more than are shipped.
    """
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    if requests > len(rows):
        raise InputError(
            f"--requests: expected at most {len(rows)}, without --prompts or --random-tokens, "
            f"found {requests}"
        )
    ids = [
        encode_chat(row["messages"], engine.tokenizer, thinking=row["thinking"])
        for row in rows[:requests]
    ]
    return Prompts("built-in problems and stories", ids, True)


def random_tokens(engine: Engine, length: int, requests: int) -> Prompts:
    """Prompts of `length` ids, drawn evenly from the vocabulary."""
    if length < 1:
        raise InputError(f"--random-tokens: expected at least 1, found {length}")
    rng = np.random.default_rng(_SEED)
    ids = rng.integers(0, engine.config.vocab_size, (requests, length))
    return Prompts(f"random ids, {length} a prompt", ids.tolist(), False)


def from_file(engine: Engine, path: Path, requests: int | None) -> Prompts:
    """Prompts of a file: a message of a user per line, or JSONL.

    Args:
      path: text, or with the ending .jsonl objects with "prompt" (text) or "ids" (token ids). Blank
        lines are passed over.
      requests: the first so many; default all.

    Raises:
      InputError: no such file, not one prompt or not enough of them, or a line that is none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        reason = "no such file" if isinstance(e, FileNotFoundError) else str(e)
        raise InputError(f"--prompts: {path}: {reason}") from None
    found = [(i + 1, line) for i, line in enumerate(lines) if line.strip()]
    if len(found) < (requests or 1):
        raise InputError(
            f"--prompts: {path}: expected at least {requests or 1} prompts, found {len(found)}"
        )
    read = _json_prompt if path.suffix == ".jsonl" else _text_prompt
    ids = [read(engine, line, f"{path}:{number}") for number, line in found[:requests]]
    return Prompts(path.name, ids, True)


def _text_prompt(engine: Engine, line: str, place: str) -> list[int]:
    return engine.encode(line)


def _json_prompt(engine: Engine, line: str, place: str) -> list[int]:
    try:
        data: Any = json.loads(line)
    except json.JSONDecodeError as e:
        raise InputError(f"{place}: expected JSON: {e.msg} at column {e.colno}") from None
    keys = [key for key in ("prompt", "ids") if isinstance(data, dict) and key in data]
    if len(keys) != 1:
        raise InputError(f'{place}: expected an object with "prompt" or "ids", found {line[:60]}')
    value = data[keys[0]]
    if keys[0] == "prompt":
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{place}: prompt: expected some text, found {value!r}")
        return engine.encode(value)
    if not isinstance(value, list) or not value or any(type(i) is not int for i in value):
        raise InputError(f"{place}: ids: expected a list of integers, found {str(value)[:60]}")
    return value
