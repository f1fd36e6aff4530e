"""Tool schemas, tool calls and tool results of a conversation, for writing as XTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kimi.errors import ChatError
from kimi.values import shown

# Numbers are written as they were spelled: parsing only finds their type. The published encoder
# allows characters below U+0020 in strings.
_DECODER = json.JSONDecoder(strict=False, parse_int=float)
_SPACE = " \t\n\r"


@dataclass(frozen=True)
class Argument:
    """An argument of a call: its key, its XTML type and the text of its element."""

    key: str
    type: str
    text: str


@dataclass(frozen=True)
class Call:
    """A tool call of an assistant message.

    Attributes:
      id: the caller's opaque id, or None.
      name: name of the tool.
      arguments: typed arguments, or the text if it is not a JSON object.
    """

    id: str | None
    name: str
    arguments: tuple[Argument, ...] | str


def schema_json(value: object, where: str) -> str:
    """JSON with sorted keys and no spaces, as tools and schemas are declared.

    Raises: ChatError if the value is not JSON.
    """
    return _dumps(value, where, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _dumps(value: object, where: str, **style: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, **style)
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatError(f"{where}: expected JSON data ({error})") from None


def check_tools(tools: object, where: str) -> list[Mapping[str, object]]:
    """Tool declarations. Raises ChatError if they are not a list of objects."""
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ChatError(f"{where}: expected a list of tool objects, found {shown(tools)}")
    return tools


def parse_calls(calls: object, where: str) -> list[Call]:
    """Calls in OpenAI style, `{"id", "type", "function": {...}}`, or function objects.

    Raises: ChatError naming the malformed call.
    """
    if calls is None:
        return []
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise ChatError(f"{where}: expected a list of tool calls, found {type(calls).__name__}")
    return [_parse_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _parse_call(call: object, where: str) -> Call:
    if not isinstance(call, Mapping):
        raise ChatError(f"{where}: expected a tool call object, found {type(call).__name__}")
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        raise ChatError(f"{where}.function: expected an object, found {type(function).__name__}")
    if call.get("type") not in (None, "function"):
        raise ChatError(f"{where}.type: expected 'function', found {shown(call['type'])}")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ChatError(f"{where}: expected a tool name, found {shown(name)}")
    call_id = _call_id(call.get("id"), f"{where}.id")
    return Call(call_id, name, _parse_arguments(function.get("arguments"), f"{where}.arguments"))


def _call_id(value: object, where: str) -> str | None:
    """The id of a call as text; some clients number their calls with integers."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**64:
        raise ChatError(f"{where}: expected a string or a 64-bit integer, found {shown(value)}")
    return str(value)


def _parse_arguments(arguments: object, where: str) -> tuple[Argument, ...] | str:
    """Typed arguments of an object, or of a text that begins with one; any other text unchanged.

    Values of an object are written as `json.dumps` does. Values of a text keep their spelling
    (`1e2`, `[1,2]`), so that a call of the model is replayed as the model wrote it.
    """
    if arguments is None or arguments == "":
        return ()
    if isinstance(arguments, Mapping):
        return tuple(_from_value(key, value, where) for key, value in arguments.items())
    if isinstance(arguments, str):
        try:
            return _from_text(arguments)
        except ValueError:
            return arguments
    found = type(arguments).__name__
    raise ChatError(f"{where}: expected an object or its JSON text, found {found}")


def _from_value(key: object, value: object, where: str) -> Argument:
    if not isinstance(key, str):
        raise ChatError(f"{where}: expected string keys, found {shown(key)}")
    text = value if isinstance(value, str) else _dumps(value, f"{where}[{shown(key)}]")
    return Argument(key, xtml_type(value), text)


def _from_text(text: str) -> tuple[Argument, ...]:
    """Arguments of the JSON object at the start of a text. Raises ValueError if there is none."""
    arguments: list[Argument] = []
    at = _expect(text, _skip(text, 0), "{")
    while text[at : at + 1] != "}" or arguments:
        key, at = _decode(text, at)
        if not isinstance(key, str):
            raise ValueError("key")
        at = _expect(text, _skip(text, at), ":")
        value, end = _decode(text, at)
        literal = value if isinstance(value, str) else text[at:end]
        arguments.append(Argument(key, xtml_type(value), literal))
        at = _skip(text, end)
        if text[at : at + 1] == "}":
            break
        at = _expect(text, at, ",")
    return tuple(arguments)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _expect(text: str, at: int, char: str) -> int:
    """The position after a required character and whitespace."""
    if text[at : at + 1] != char:
        raise ValueError(char)
    return _skip(text, at + 1)


def _decode(text: str, at: int) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def xtml_type(value: object) -> str:
    """The type attribute of an argument with this JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):  # before int, of which it is a subclass
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def order_results(
    results: Sequence[Mapping[str, object]], calls: Sequence[Call], first: int = 0
) -> list[tuple[int, str | None]]:
    """The order to write tool messages in: (index of the message, name of the call it answers).

    Written results are identified by position only, so they are sorted into the order of the calls
    if all their ids belong to calls. Otherwise the order is kept and the names are None.

    Args:
      first: index of the first result in the conversation.

    Raises: ChatError if the id of a result is neither a string nor an integer.
    """
    ids = []
    for i, result in enumerate(results, start=first):
        key = "tool_call_id" if "tool_call_id" in result else "id"
        ids.append(_call_id(result.get(key), f"messages[{i}].{key}"))
    index_of: dict[str | None, int] = {}
    for i, call in enumerate(calls):
        if call.id is not None:
            index_of.setdefault(call.id, i)
    if not all(call_id in index_of for call_id in ids):
        return [(i, None) for i in range(first, first + len(ids))]
    answers = [(index_of[call_id], i) for i, call_id in enumerate(ids, start=first)]
    return [(i, calls[call].name) for call, i in sorted(answers)]
