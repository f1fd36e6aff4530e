"""Where a benchmark's prompts come from: a file, the small model's prompt sets, or random ids."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kimi.api import Engine
from kimi.assets import PROMPTS
from kimi.conversation import Prompt
from kimi.errors import InputError, KimiError
from kimi.fields import JsonError, parse_json
from kimi.files import read_lines
from kimi.text.chat import Message
from kimi.values import integer, shown

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
    rows = [parse_json(line) for _, line in read_lines(PROMPTS)]
    if integer("requests", requests, 1) > len(rows):
        raise InputError(
            f"--requests: expected at most {len(rows)}, without --prompts or --random-tokens, "
            f"found {requests}"
        )
    ids = [engine.encode(row["messages"], thinking=row["thinking"]) for row in rows[:requests]]
    return Prompts("built-in problems and stories", ids, True)


def random_tokens(engine: Engine, length: int, requests: int) -> Prompts:
    """Prompts of `length` ids, drawn evenly from the vocabulary."""
    integer("--random-tokens", length, 1)
    integer("requests", requests, 1)
    rng = np.random.default_rng(_SEED)
    ids = rng.integers(0, engine.config.vocab_size, (requests, length))
    return Prompts(f"random ids, {length} a prompt", ids.tolist(), False)


def from_file(engine: Engine, path: str | Path, requests: int | None = None) -> Prompts:
    """Prompts of a file, text as messages of a user. Arguments and errors as of `read_prompts`."""
    ids = []
    for number, prompt in enumerate(read_prompts(path, requests), start=1):
        try:
            ids.append(engine.encode(prompt))
        except KimiError as e:
            raise InputError(f"{path}: prompt {number}: {e}".replace(": prompt: ", ": ")) from None
    return Prompts(Path(path).name, ids, True)


def read_prompts(path: str | Path, requests: int | None = None) -> list[Prompt]:
    """Prompts of a file, text, messages or token ids: one a line, or JSON Lines.

    Args:
      path: of UTF-8; with the ending .jsonl (in any case) objects with "prompt" (text), "messages"
        (in the shape of chat completions) or "ids" (token ids), and any other key. Lines end at a
        line feed alone; blank ones are passed over.
      requests: the first so many; default all.

    Raises:
      InputError: no such file, not one prompt or not enough of them, or a line that is none.
    """
    least = 1 if requests is None else integer("requests", requests, 1)
    try:
        found = read_lines(path)
    except InputError as e:
        raise InputError(f"--prompts: {e}") from None
    if len(found) < least:
        raise InputError(
            f"--prompts: {path}: expected at least {least} prompts, found {len(found)}"
        )
    if Path(path).suffix.lower() != ".jsonl":
        return [line for _, line in found[:requests]]
    return [_json_prompt(line, f"{path}:{number}") for number, line in found[:requests]]


def _json_prompt(line: str, place: str) -> Prompt:
    try:
        data = parse_json(line)
    except JsonError as e:
        reason = str(e).removeprefix("not valid JSON: ")
        raise InputError(f"{place}: expected JSON: {reason}") from None
    known = ("prompt", "messages", "ids")
    keys = [key for key in known if isinstance(data, dict) and key in data]
    if len(keys) != 1:
        raise InputError(
            f'{place}: expected an object with "prompt", "messages" or "ids", found {shown(data)}'
        )
    value = data[keys[0]]
    if keys[0] == "messages":
        if not isinstance(value, list) or not value or not all(isinstance(m, dict) for m in value):
            raise InputError(f"{place}: messages: expected a list of objects, found {shown(value)}")
        messages: list[Message] = value
        return messages
    if keys[0] == "prompt":
        if not isinstance(value, str) or not value.strip():
            raise InputError(
                f'{place}: prompt: expected some text (token ids as "ids"), found {shown(value)}'
            )
        return value
    if not isinstance(value, list) or not value or any(type(i) is not int for i in value):
        raise InputError(f"{place}: ids: expected a list of integers, found {shown(value)}")
    return value
