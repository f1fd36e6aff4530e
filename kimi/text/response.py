"""What a model wrote after a prompt: its thoughts, its answer and its tool calls.

The output may stop anywhere and need not be well formed. Each piece of it lands in exactly one
field: text and markers that have no place in the structure stay in the channel where they stand,
or go to `extra` where there is no channel, markers by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kimi.errors import ChatError
from kimi.text.tokenizer import Tokenizer
from kimi.text.xtml import parse_tag

_OPEN, _CLOSE, _SEP, _END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
_MARKERS = re.compile("(" + "|".join(map(re.escape, (_OPEN, _CLOSE, _SEP, _END))) + ")")

# Where each tag leads; a tag that is not listed is text of the place where it stands. Two tags
# left out by the model are forgiven: the close of think and the close of response.
_STEPS = {
    "think": {
        "/think": "message", "response": "response", "tools": "tools", "/message": "end",
    },
    "response": {"/response": "message", "tools": "tools", "/message": "end"},
    "message": {"think": "think", "response": "response", "tools": "tools", "/message": "end"},
    "tools": {"call": "call", "/tools": "message"},
    "call": {"argument": "argument", "json": "json", "/call": "tools"},
    "argument": {"/argument": "call"},
    "json": {"/json": "call"},
    "end": {},
}  # fmt: skip


@dataclass(frozen=True)
class ToolCall:
    """One tool call that the model asked for.

    Attributes:
      name: name of the tool.
      arguments: JSON text of the arguments object, each value in the model's own spelling. A value
        that does not parse is there as a string; a `json` element is there as the model wrote it.
      complete: False if the output stopped inside the call. Do not run such a call.
    """

    name: str
    arguments: str
    complete: bool


@dataclass(frozen=True)
class ParsedResponse:
    """A generated message taken apart.

    Attributes:
      think: text of the think channel.
      response: text of the response channel.
      tool_calls: in the order written.
      extra: everything that belongs to none of the above, empty for well-formed output.
      complete: True if the model ended the message.
    """

    think: str
    response: str
    tool_calls: tuple[ToolCall, ...]
    extra: str
    complete: bool

    def to_message(self) -> dict[str, object]:
        """The message as history for `encode_chat`; call ids are `call_1`, `call_2`, ..."""
        message: dict[str, object] = {"role": "assistant", "content": self.response}
        if self.think:
            message["reasoning_content"] = self.think
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{i}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for i, call in enumerate(self.tool_calls, start=1)
            ]
        return message


def parse_response(
    output: Sequence[int] | str,
    tokenizer: Tokenizer | None = None,
    *,
    start: Literal["think", "response"] = "think",
) -> ParsedResponse:
    """Splits a generated message into its channels.

    Args:
      output: generated ids, without the prompt; stop ids may be there or not. Or their text, where
        a marker that the model spelled out in ordinary letters counts as the marker.
      tokenizer: needed for ids.
      start: the channel that the prompt opened; "response" if thinking was off.

    Raises: ChatError if `start` is no channel or ids come without a tokenizer; TokenizerError if
      an id is outside the vocabulary.
    """
    if start not in ("think", "response"):
        raise ChatError(f"start: expected 'think' or 'response', found {start!r}")
    if isinstance(output, str):
        pieces = _text_pieces(output)
    elif tokenizer is None:
        raise ChatError("output: token ids need a tokenizer")
    else:
        pieces = _id_pieces(output, tokenizer)
    return _Parser(start).run(_items(pieces))


def _text_pieces(text: str) -> Iterator[tuple[bool, str]]:
    """(is a marker, text) for every marker and every stretch of other text."""
    # The pattern has one group, so the markers are at the odd places.
    for i, piece in enumerate(_MARKERS.split(text)):
        if piece:
            yield i % 2 == 1, piece


def _id_pieces(ids: Sequence[int], tokenizer: Tokenizer) -> Iterator[tuple[bool, str]]:
    """(is a marker, text) for every marker and every stretch of other tokens."""
    special = tokenizer.special
    markers = {special.open: _OPEN, special.close: _CLOSE, special.sep: _SEP}
    markers |= dict.fromkeys(tokenizer.stop_ids, _END)
    stretch: list[int] = []
    for token in ids:
        if token not in markers:
            stretch.append(token)
            continue
        if stretch:
            yield False, tokenizer.decode(stretch)
            stretch = []
        yield True, markers[token]
    if stretch:
        yield False, tokenizer.decode(stretch)


@dataclass(frozen=True)
class _Item:
    """A tag (`name` for an open one, `/name` for a close one), an end, or text.

    Attributes:
      raw: the item as written, markers by name.
      tag: name of the tag, "end", or "" for text.
      attributes: of an open tag.
      cut: True for a tag that the output's end cut off.
    """

    raw: str
    tag: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    cut: bool = False


def _items(pieces: Iterator[tuple[bool, str]]) -> Iterator[_Item]:
    """Joins the pieces of each tag; a marker without its tag is text."""
    begun: list[str] = []
    for is_marker, piece in pieces:
        if begun and is_marker and piece == _SEP:
            yield _tag_item(begun[0], "".join(begun[1:]))
            begun = []
        elif begun and not is_marker:
            begun.append(piece)
        else:
            if begun:
                yield _Item("".join(begun))
                begun = []
            if is_marker and piece in (_OPEN, _CLOSE):
                begun = [piece]
            else:
                yield _Item(piece, tag="end" if is_marker and piece == _END else "")
    if begun:
        yield _Item("".join(begun), cut=True)


def _tag_item(marker: str, text: str) -> _Item:
    raw = marker + text + _SEP
    parsed = parse_tag(text)
    if parsed is None or (marker == _CLOSE and parsed[1]):
        return _Item(raw)
    name, attributes = parsed
    return _Item(raw, f"/{name}" if marker == _CLOSE else name, attributes)


@dataclass
class _OpenCall:
    """A call while it is being read: its arguments as (key, JSON text), or its json element."""

    name: str
    arguments: list[tuple[str, str]] = field(default_factory=list)
    json: str | None = None

    def finish(self, complete: bool) -> ToolCall:
        pairs = ", ".join(f"{_quote(key)}: {value}" for key, value in self.arguments)
        text = "{" + pairs + "}" if self.json is None else self.json
        return ToolCall(self.name, text, complete)


class _Parser:
    """Walks the items; `place` is the element that the next item stands in."""

    def __init__(self, start: str) -> None:
        self.place = start
        self.texts: dict[str, list[str]] = {"think": [], "response": [], "extra": []}
        self.calls: list[ToolCall] = []
        self.call = _OpenCall("")
        self.argument: dict[str, str] = {}
        self.body: list[str] = []

    def run(self, items: Iterator[_Item]) -> ParsedResponse:
        for item in items:
            if item.cut:
                self.texts["extra"].append(item.raw)
            elif item.tag == "end":
                self._leave_call()
                self.place = "end"
            elif item.tag in _STEPS[self.place] and self._fits(item):
                self._step(item)
            else:
                self._text(item.raw)
        complete = self.place == "end"
        self._leave_call()
        return ParsedResponse(
            "".join(self.texts["think"]),
            "".join(self.texts["response"]),
            tuple(self.calls),
            "".join(self.texts["extra"]),
            complete,
        )

    def _fits(self, item: _Item) -> bool:
        """Whether the tag has what it needs; a call holds arguments or one json element."""
        if item.tag == "call":
            return "tool" in item.attributes
        if item.tag == "argument":
            return "key" in item.attributes and self.call.json is None
        if item.tag == "json":
            return self.call.json is None and not self.call.arguments
        return True

    def _text(self, raw: str) -> None:
        if self.place in ("argument", "json"):
            self.body.append(raw)
        else:
            self.texts[self.place if self.place in self.texts else "extra"].append(raw)

    def _step(self, item: _Item) -> None:
        if item.tag == "call":
            self.call = _OpenCall(item.attributes["tool"])
        elif item.tag in ("argument", "json"):
            self.argument, self.body = item.attributes, []
        elif item.tag in ("/argument", "/json"):
            self._leave_body()
        elif item.tag == "/call":
            self.calls.append(self.call.finish(complete=True))
        self.place = _STEPS[self.place][item.tag]

    def _leave_body(self) -> None:
        text = "".join(self.body)
        if self.place == "json":
            self.call.json = text
        else:
            value = _json_value(text, self.argument.get("type", "string"))
            self.call.arguments.append((self.argument["key"], value))

    def _leave_call(self) -> None:
        """Keeps what there is of a call that the output's end cut off."""
        if self.place in ("argument", "json"):
            self._leave_body()
        if self.place in ("argument", "json", "call"):
            self.calls.append(self.call.finish(complete=False))


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json_value(text: str, kind: str) -> str:
    """JSON of an argument: its own text, or that text quoted if it is a string or no JSON."""
    if kind != "string":
        try:
            if not isinstance(json.loads(text), str):
                return text
        except (ValueError, RecursionError):
            pass
    return _quote(text)
