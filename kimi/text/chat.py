"""Encodes a conversation in OpenAI style as the token ids that Kimi K3 was trained on.

A prompt consists of the tool declaration, thinking effort, the conversation, tool choice, response
format, and the opening of the assistant's message. User text and history are not stripped or
changed, except that lone surrogates, which UTF-8 cannot encode, become U+FFFD.

Source: the checkpoint's encoding_k3.py, the later revision if two differ. It writes the arguments
of a call as they were spelled, keeps reasoning that is only whitespace, and refuses unknown roles.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

from kimi.errors import ChatError
from kimi.text.tokenizer import Tokenizer
from kimi.text.tools import Call, check_tools, order_results, parse_calls, schema_json
from kimi.text.xtml import XtmlWriter
from kimi.values import shown

Thinking = Literal["off", "low", "high", "max"]
Message = Mapping[str, object]

# The model was trained on this wording, which names `medium` although it is not supported.
_THINKING_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{}\n```"
_MORE_TOOLS = (
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n"
    "```json\n{}\n```"
)
_TOOL_CHOICE = {
    "required": "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.",
}
_JSON_FORMAT = (
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any "
    "additional formatting."
)
_JSON_SCHEMA = "\nThe JSON data must match the following schema:\n```json\n{}\n```"

_KEYS = {
    "user": {"role", "content", "name"},
    "system": {"role", "content", "name", "tools"},
    "assistant": {"role", "content", "name", "reasoning_content", "reasoning", "tool_calls"},
    "tool": {"role", "content", "name", "tool", "tool_call_id", "id"},
}
# Keys of the parts of a message, and of tool calls in both styles, streamed ones included.
_PART_KEYS = {"type", "text"}
_CALL_KEYS = {"id", "type", "function", "index", "name", "arguments"}


def encode_chat(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    thinking: Thinking = "max",
    tools: list[Message] | None = None,
    tool_choice: str | Message | None = None,
    response_format: str | Message | None = None,
) -> list[int]:
    """Prompt ids, ending in the think channel or in the response, where the model continues.

    Args:
      messages: OpenAI style. Roles user, system, assistant and tool. An assistant message may have
        `tool_calls` and `reasoning_content` or, if that is empty, `reasoning`; a system message
        with `tools` adds tools. Keys that no role has, such as `cache_control`, are ignored with
        one warning.
      tokenizer: the checkpoint's.
      thinking: effort, or "off" to answer at once (also removes the think channels of history).
      tools: function declarations, known from the start.
      tool_choice: "auto", "required" or "none". An OpenAI object that names one tool is accepted
        and ignored, as the format cannot express it.
      response_format: "text", "json_object", or an OpenAI response_format object.

    Returns: ids; control ids only for the structure, never from text.
    Raises: ChatError if the format cannot express the conversation.
    """
    if thinking not in get_args(Thinking):
        expected = ", ".join(get_args(Thinking))
        raise ChatError(f"thinking: expected one of {expected}, found {shown(thinking)}")
    listed: object = messages
    if not isinstance(listed, Sequence) or isinstance(listed, str | bytes):
        raise ChatError(f"messages: expected a list of messages, found {shown(listed)}")
    if not messages:
        raise ChatError("messages: expected at least one message, found none")
    writer = XtmlWriter(tokenizer)
    if tools is not None and check_tools(tools, "tools"):
        _internal_message(writer, "tool-declare", _TOOLS.format(schema_json(tools, "tools")))
    if thinking != "off":
        _internal_message(writer, "thinking-effort", _THINKING_EFFORT.format(thinking))
    _write_conversation(writer, messages, thinking != "off")
    if unknown := sorted({shown(key) for message in messages for key in _unknown_keys(message)}):
        warnings.warn(
            f"messages: not known to the chat format and ignored: {', '.join(unknown)}",
            stacklevel=2,
        )
    _write_tool_choice(writer, tool_choice)
    _write_response_format(writer, response_format)
    writer.open("message", {"role": "assistant"})
    writer.open("response" if thinking == "off" else "think")
    return writer.ids


def _internal_message(writer: XtmlWriter, kind: str, body: str) -> None:
    writer.open("message", {"role": "system", "type": kind})
    writer.text(body)
    writer.close_message()


def _write_conversation(writer: XtmlWriter, messages: Sequence[Message], thinking: bool) -> None:
    roles = [_checked_role(message, f"messages[{i}]") for i, message in enumerate(messages)]
    calls: list[Call] = []
    answered = 0
    for role, group in itertools.groupby(range(len(messages)), roles.__getitem__):
        run = list(group)
        if role == "tool":
            for i, name in order_results([messages[i] for i in run], calls, run[0]):
                _write_result(writer, messages[i], name, calls, answered, f"messages[{i}]")
                answered += 1
            continue
        for i in run:
            message, where = messages[i], f"messages[{i}]"
            if role == "assistant":
                calls, answered = parse_calls(message.get("tool_calls"), f"{where}.tool_calls"), 0
                _write_assistant(writer, message, calls, thinking, where)
            elif message.get("tools"):
                _write_more_tools(writer, message, where)
            else:
                writer.open("message", {"role": role} | _name(message, where))
                _write_content(writer, message, where)
                writer.close_message()


def _checked_role(message: object, where: str) -> str:
    """The role; no key that is set may be one of another role."""
    if not isinstance(message, Mapping):
        raise ChatError(f"{where}: expected an object, found {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or role not in _KEYS:
        raise ChatError(f"{where}.role: expected one of {', '.join(_KEYS)}, found {shown(role)}")
    for key in _filled(message, _KEYS[role]):
        if any(key in keys for keys in _KEYS.values()):
            raise ChatError(f"{where}: a {role} message cannot express the key {key!r}")
    return role


def _unknown_keys(message: Message) -> Iterator[object]:
    """Keys of a checked message that are set and unknown to the format."""
    yield from _filled(message, _KEYS[str(message["role"])])
    content, calls = message.get("content"), message.get("tool_calls")
    for part in content if isinstance(content, list) else ():
        yield from _filled(part, _PART_KEYS)
    for call in calls if isinstance(calls, Sequence) else ():
        yield from _filled(call, _CALL_KEYS)
        yield from _filled(call.get("function", {}), _CALL_KEYS)


def _filled(data: Mapping[str, object], known: set[str]) -> Iterator[str]:
    """Keys that are not `known` and whose values are not empty."""
    for key, value in data.items():
        empty = value is None or (isinstance(value, str | list | dict) and not value)
        if key not in known and not empty:
            yield key


def _name(message: Message, where: str) -> dict[str, str]:
    """The optional name attribute of a message."""
    name = message.get("name")
    if name is None or name == "":
        return {}
    if not isinstance(name, str):
        raise ChatError(f"{where}.name: expected a string, found {shown(name)}")
    return {"name": name}


def _write_content(writer: XtmlWriter, message: Message, where: str) -> None:
    """Writes a text, or a list of text parts, each encoded separately; null is empty."""
    content, where = message.get("content"), f"{where}.content"
    if isinstance(content, str):
        writer.text(content)
        return
    if content is None and "content" in message:
        return
    if not isinstance(content, list):
        raise ChatError(
            f"{where}: expected a text or a list of parts, found {type(content).__name__}"
        )
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise ChatError(
                f"{where}[{i}].type: only 'text' parts are supported, found {shown(kind)}"
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise ChatError(f"{where}[{i}].text: expected a text, found {shown(text)}")
        writer.text(text)


def _write_more_tools(writer: XtmlWriter, message: Message, where: str) -> None:
    if message.get("content") or message.get("name"):
        raise ChatError(f"{where}: a system message with tools cannot have content or a name")
    where = f"{where}.tools"
    tools = check_tools(message["tools"], where)
    _internal_message(writer, "tool-declare", _MORE_TOOLS.format(schema_json(tools, where)))


def _write_assistant(
    writer: XtmlWriter, message: Message, calls: list[Call], thinking: bool, where: str
) -> None:
    reasoning = _reasoning(message, where)
    writer.open("message", {"role": "assistant"} | _name(message, where))
    # With thinking on, the channel is written even if it is empty.
    if thinking:
        writer.open("think")
        writer.text(reasoning)
        writer.close("think")
    writer.open("response")
    if message.get("content") is not None:
        _write_content(writer, message, where)
    writer.close("response")
    if calls:
        writer.open("tools")
        for i, call in enumerate(calls, start=1):
            _write_call(writer, call, i)
        writer.close("tools")
    writer.close_message()


def _reasoning(message: Message, where: str) -> str:
    """Text of the think channel; servers send it under either key, or both."""
    key = "reasoning_content" if message.get("reasoning_content") else "reasoning"
    text = message.get(key)
    if text is not None and not isinstance(text, str):
        raise ChatError(f"{where}: expected reasoning to be a text, found {shown(text)}")
    return text or ""


def _write_call(writer: XtmlWriter, call: Call, index: int) -> None:
    writer.open("call", {"tool": call.name, "index": str(index)})
    if isinstance(call.arguments, str):
        writer.open("json", {"type": "object"})
        writer.text(call.arguments)
        writer.close("json")
    else:
        for argument in call.arguments:
            writer.open("argument", {"key": argument.key, "type": argument.type})
            writer.text(argument.text)
            writer.close("argument")
    writer.close("call")


def _write_result(
    writer: XtmlWriter, result: Message, name: str | None, calls: Sequence[Call], answered: int,
    where: str,
) -> None:  # fmt: skip
    """Writes a tool result, the one after `answered` others since the last assistant message."""
    tool: object = name or result.get("tool") or result.get("name")
    if tool is None and answered < len(calls):
        tool = calls[answered].name
    if not isinstance(tool, str):
        raise ChatError(f"{where}: expected a tool name or the id of a call, found {shown(tool)}")
    writer.open("message", {"role": "tool", "tool": tool, "index": str(answered + 1)})
    _write_content(writer, result, where)
    writer.close_message()


def _write_tool_choice(writer: XtmlWriter, tool_choice: object) -> None:
    if tool_choice is None or tool_choice == "auto" or _names_a_tool(tool_choice):
        return
    if not isinstance(tool_choice, str) or tool_choice not in _TOOL_CHOICE:
        raise ChatError(
            "tool_choice: expected 'auto', 'required' or 'none', or an object that names a tool, "
            f"found {shown(tool_choice)}"
        )
    _internal_message(writer, "tool-choice", _TOOL_CHOICE[tool_choice])


def _names_a_tool(choice: object) -> bool:
    """Whether it is `{"type": "function", "function": {"name": ...}}`, or without the nesting."""
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return False
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    return isinstance(name, str) and bool(name)


def _write_response_format(writer: XtmlWriter, response_format: object) -> None:
    data = response_format if isinstance(response_format, Mapping) else {"type": response_format}
    kind = data.get("type")
    if kind is None or kind == "text":
        return
    if kind == "json_object":
        _internal_message(writer, "response-format", _JSON_FORMAT.format(kind))
        return
    if kind != "json_schema":
        raise ChatError(
            f"response_format: expected text, json_object or json_schema, found {shown(kind)}"
        )
    schema, where = data.get("json_schema"), "response_format.json_schema"
    if isinstance(schema, Mapping):
        schema = schema.get("schema", schema.get("json_schema", schema))
    # Like the published encoder, write null if there is no schema.
    if schema is not None and not isinstance(schema, Mapping):
        raise ChatError(f"{where}: expected a schema object, found {shown(schema)}")
    body = (_JSON_FORMAT + _JSON_SCHEMA).format(kind, schema_json(schema, where))
    _internal_message(writer, "response-format", body)
