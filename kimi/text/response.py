"""Parses a generated message into reasoning, response and tool calls.

The output may be truncated or malformed. Each piece of it goes to exactly one field: text and
markers outside the structure stay in their channel, or go to `extra` if there is none, markers by
name. A truncated tag goes to `extra` too. Text that `/response` closes is the response, whatever
channel it was in, and so is text after the reasoning if no response is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from kimi.errors import ChatError
from kimi.text.items import END, IdItems, Item, text_items
from kimi.text.tokenizer import Tokenizer
from kimi.values import shown

# Element -> tag -> the element after it; a tag that is not listed is text. The model may leave out
# the tags that close think and response or open the response, and may open a channel twice.
_STEPS = {
    "think": {
        "think": "think", "/think": "message", "response": "response", "/response": "message",
        "tools": "tools", "/message": "end",
    },
    "response": {
        "response": "response", "/response": "message", "tools": "tools", "/message": "end",
    },
    "message": {
        "think": "think", "response": "response", "/response": "message", "tools": "tools",
        "/message": "end",
    },
    "tools": {"call": "call", "/tools": "message"},
    "call": {"argument": "argument", "json": "json", "/call": "tools"},
    "argument": {"/argument": "call"},
    "json": {"/json": "call"},
    "end": {},
}  # fmt: skip


@dataclass(frozen=True)
class ToolCall:
    """A tool call of the model.

    Attributes:
      name: name of the tool.
      arguments: JSON text of the arguments object, each value as the model spelled it. A value that
        is not JSON becomes a string; a `json` element is not changed.
      complete: False if the output ends within the call. Do not run such a call.
    """

    name: str
    arguments: str
    complete: bool


@dataclass(frozen=True)
class ParsedResponse:
    """A parsed message.

    Attributes:
      think: text of the think channel.
      response: text of the response channel.
      tool_calls: in the order written.
      extra: everything else; empty for well-formed output.
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
      output: generated ids without the prompt, with or without stop ids. Or their text, in which
        a marker that the model spelled as ordinary text counts as the marker.
      tokenizer: required for ids.
      start: the channel that the prompt opened; "response" if thinking was off.

    Raises: ChatError if `start` is not a channel or ids come without a tokenizer; TokenizerError
      if an id is outside the vocabulary.
    """
    if start not in ("think", "response"):
        raise ChatError(f"start: expected 'think' or 'response', found {shown(start)}")
    if isinstance(output, str):
        return _Parser(start).run(text_items(output))
    if tokenizer is None:
        raise ChatError("output: token ids need a tokenizer")
    items = IdItems(tokenizer)
    return _Parser(start).run([*items.push(output), *items.finish()])


@dataclass
class _OpenCall:
    """A call being parsed: its arguments as (key, JSON text), or its json element."""

    name: str
    arguments: list[tuple[str, str]] = field(default_factory=list)
    json: str | None = None

    def finish(self, complete: bool) -> ToolCall:
        pairs = ", ".join(f"{_quote(key)}: {value}" for key, value in self.arguments)
        text = "{" + pairs + "}" if self.json is None else self.json
        return ToolCall(self.name, text, complete)


class _Parser:
    """A state machine over items; `element` is that of the next item."""

    def __init__(self, start: str) -> None:
        self.element = start
        # "open" is text that does not belong to a channel yet.
        self.texts: dict[str, list[str]] = {"think": [], "response": [], "open": [], "extra": []}
        self.answered = start == "response"
        self.thought = 0  # pieces of `think` before it was last opened
        self.calls: list[ToolCall] = []
        self.call = _OpenCall("")
        self.argument: dict[str, str] = {}
        self.body: list[str] = []

    def run(self, items: Iterable[Item]) -> ParsedResponse:
        for item in items:
            tag, attributes = item.tag
            if item.cut:
                self.texts["extra"].append(item.raw)
            elif item.marker == END:
                self._leave_call()
                self.element = "end"
            elif tag in _STEPS[self.element] and self._fits(tag, attributes):
                self._step(tag, attributes)
            else:
                self._text(item)
        complete = self.element == "end"
        self._leave_call()
        self._settle("extra" if self.answered else "response")
        think, response, extra = ("".join(self.texts[k]) for k in ("think", "response", "extra"))
        return ParsedResponse(think, response, tuple(self.calls), extra, complete)

    def _fits(self, tag: str, attributes: dict[str, str]) -> bool:
        """Whether the tag has its attributes; a call has arguments or one json element."""
        if tag == "call":
            return bool(attributes.get("tool"))
        if tag == "argument":
            return "key" in attributes and self.call.json is None
        if tag == "json":
            return self.call.json is None and not self.call.arguments
        if tag == "/response" and self.element == "message":
            return not self.answered
        return True

    def _text(self, item: Item) -> None:
        if self.element in ("argument", "json"):
            self.body.append(item.raw)
        elif self.element == "message" and not self.answered and not item.marker:
            self.texts["open"].append(item.text)
        else:
            self.texts[self.element if self.element in self.texts else "extra"].append(item.raw)

    def _step(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "response":
            self._settle("extra")
            self.answered = True
        elif tag == "think" and self.element != "think":
            self.thought = len(self.texts["think"])
        elif tag == "/response":
            self._answer()
        elif tag == "call":
            self.call = _OpenCall(attributes["tool"])
        elif tag in ("argument", "json"):
            self.argument, self.body = attributes, []
        elif tag in ("/argument", "/json"):
            self._leave_body()
        elif tag == "/call":
            self.calls.append(self.call.finish(complete=True))
        self.element = _STEPS[self.element][tag]

    def _settle(self, channel: str) -> None:
        """Moves the open text to a channel."""
        self.texts[channel] += self.texts["open"]
        self.texts["open"] = []

    def _answer(self) -> None:
        """Makes a response of the text that `/response` closes, if none was opened."""
        if self.element == "think":
            self.texts["response"] += self.texts["think"][self.thought :]
            del self.texts["think"][self.thought :]
        self._settle("response")
        self.answered = True

    def _leave_body(self) -> None:
        text = "".join(self.body)
        if self.element == "json":
            self.call.json = text
        else:
            value = _json_value(text, self.argument.get("type", "string"))
            self.call.arguments.append((self.argument["key"], value))

    def _leave_call(self) -> None:
        """Keeps a truncated call."""
        if self.element in ("argument", "json"):
            self._leave_body()
        if self.element in ("argument", "json", "call"):
            self.calls.append(self.call.finish(complete=False))


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json_value(text: str, kind: str) -> str:
    """JSON of an argument: its text, quoted if it is a string or not JSON.

    If the type is number, boolean or null, the text of a JSON string is that string.
    """
    return text if kind != "string" and _is_json(text, kind) else _quote(text)


def _is_json(text: str, kind: str) -> bool:
    try:
        value = json.loads(text, parse_int=float, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return False
    return kind not in ("object", "array") or not isinstance(value, str)


def _no_json(constant: str) -> NoReturn:
    """Refuses NaN and infinity, which Python's `json` accepts."""
    raise ValueError(constant)
