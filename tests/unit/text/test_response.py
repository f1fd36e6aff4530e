import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.errors import ChatError, TokenizerError
from kimi.text.chat import encode_chat
from kimi.text.response import ParsedResponse, ToolCall, parse_response

FULL = (
    "Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>"
    '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
    '<|open|>argument key="a" type="number"<|sep|>1e2<|close|>argument<|sep|>'
    '<|open|>argument key="b" type="string"<|sep|>x "y"<|close|>argument<|sep|>'
    "<|close|>call<|sep|>"
    '<|open|>call tool="g&amp;&quot;" index="2"<|sep|>'
    '<|open|>json type="object"<|sep|>{"broken<|close|>json<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
)
MARKERS = ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"]
TAGS = [
    "think",
    "response",
    "tools",
    "message",
    'call tool="f"',
    'argument key="k"',
    "json",
    "call",
]


def test_everything():
    assert parse_response(FULL) == ParsedResponse(
        think="Hm.",
        response="Yes.",
        tool_calls=(
            ToolCall("f", '{"a": 1e2, "b": "x \\"y\\""}', complete=True),
            ToolCall('g&"', '{"broken', complete=True),
        ),
        extra="",
        complete=True,
    )


def test_start_in_the_response():
    parsed = parse_response("Yes.<|close|>response<|sep|><|close|>message<|sep|>", start="response")
    assert parsed == ParsedResponse("", "Yes.", (), "", True)


@pytest.mark.parametrize(
    ("text", "think", "response", "extra"),
    [
        ("", "", "", ""),
        ("half a thou", "half a thou", "", ""),
        ("a<|close|>", "a", "", "<|close|>"),
        ("a<|close|>thi", "a", "", "<|close|>thi"),
        ("a<|close|>think<|sep|>", "a", "", ""),
        ("a<|close|>think<|sep|><|open|>response<|sep|>b", "a", "b", ""),
        # Markers outside the structure stay in their channel.
        ("a<|sep|>b", "a<|sep|>b", "", ""),
        ("a<|open|><|open|>b<|sep|>", "a<|open|><|open|>b<|sep|>", "", ""),
        ("a<|open|>b<|close|>think<|sep|>", "a<|open|>b", "", ""),
        ("a<|open|>quote<|sep|>b<|close|>quote<|sep|>",
         "a<|open|>quote<|sep|>b<|close|>quote<|sep|>", "", ""),
        # The close of think is missing.
        ("a<|open|>response<|sep|>b", "a", "b", ""),
        # Text between the channels belongs to none.
        ("a<|close|>think<|sep|>b<|open|>response<|sep|>c", "a", "c", "b"),
        ("a<|close|>message<|sep|>b<|end_of_msg|>c", "a", "", "bc"),
        # A channel that is opened twice continues.
        ("a<|close|>think<|sep|><|open|>think<|sep|>b", "ab", "", ""),
        ("ab<|open|>think<|sep|>c", "abc", "", ""),
        ("a<|open|>response<|sep|>b<|open|>response<|sep|>c", "a", "bc", ""),
        # What /response closes is the response, wherever it was written.
        ("a<|close|>response<|sep|>", "", "a", ""),
        ("a<|open|>think<|sep|>b<|close|>response<|sep|><|end_of_msg|>", "", "ab", ""),
        ("a<|close|>think<|sep|><|open|>think<|sep|>b<|close|>response<|sep|>", "a", "b", ""),
        ("a<|close|>think<|sep|>b<|close|>response<|sep|>c", "a", "b", "c"),
        ("a<|close|>response<|sep|>b<|close|>response<|sep|>", "",
         "a", "b<|close|>response<|sep|>"),
        # So is text after the reasoning if no response is opened.
        ("a<|close|>think<|sep|>b", "a", "b", ""),
        ("a<|close|>think<|sep|>b<|close|>message<|sep|><|end_of_msg|>", "a", "b", ""),
        ("a<|close|>think<|sep|>b<|sep|><|open|>tools<|sep|><|close|>tools<|sep|>c<|end_of_msg|>",
         "a", "bc", "<|sep|>"),
        # The end of the message cuts a tag off.
        ("a<|close|><|end_of_msg|>", "a", "", "<|close|>"),
        ("a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>resp<|end_of_msg|>", "a", "b",
         "<|close|>resp"),
        ("a<|close|>think<|sep|><|open|>resp<|end_of_msg|>", "a", "", "<|open|>resp"),
        ("\ud800a\ud83d\ude00", "\ufffda😀", "", ""),
        ("a<|close|>think key=\"v\"<|sep|>b", 'a<|close|>think key="v"<|sep|>b', "", ""),
    ],
)  # fmt: skip
def test_truncated_and_malformed(text, think, response, extra):
    parsed = parse_response(text)
    assert (parsed.think, parsed.response, parsed.extra) == (think, response, extra)
    assert parsed.tool_calls == ()


def test_every_truncation_keeps_the_calls_and_says_so():
    call = r"<\|open\|>call [^|]*<\|sep\|>"
    for cut in range(len(FULL) + 1):
        text = FULL[:cut]
        parsed = parse_response(text)
        assert parsed.complete == ("<|close|>message<|sep|>" in text)
        assert len(parsed.tool_calls) == len(re.findall(call, text))
        done = text.count("<|close|>call<|sep|>")
        assert [c.complete for c in parsed.tool_calls] == [
            k < done for k in range(len(parsed.tool_calls))
        ]
        if 'type="number"<|sep|>1e' in text:
            assert ("1e2" if "1e2" in text else "1e") in parsed.tool_calls[0].arguments


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("", "{}"),
        ('<|open|>argument key="a" type="number"<|sep|>two<|close|>argument<|sep|>',
         '{"a": "two"}'),
        ('<|open|>argument key="a" type="object"<|sep|>"s"<|close|>argument<|sep|>',
         '{"a": "\\"s\\""}'),
        ('<|open|>argument key="a"<|sep|>1<|close|>argument<|sep|>', '{"a": "1"}'),
        ('<|open|>argument key="a" type="null"<|sep|>null<|close|>argument<|sep|>', '{"a": null}'),
        ('<|open|>argument key="a" type="array"<|sep|>[1,2]', '{"a": [1,2]}'),
        ('<|open|>argument key="a" type="array"<|sep|>[1,', '{"a": "[1,"}'),
        ('<|open|>argument key="a"<|sep|>x<|open|>b<|sep|>y<|close|>argument<|sep|>',
         '{"a": "x<|open|>b<|sep|>y"}'),
        ('<|open|>json type="object"<|sep|>{"a', '{"a'),
        ('<|open|>argument key="a" type="number"<|sep|>"5"<|close|>argument<|sep|>', '{"a": "5"}'),
        ('<|open|>argument key="a" type="null"<|sep|>"\\ud800"', '{"a": "\\ud800"}'),
        ('<|open|>argument key="a" type="number"<|sep|>' + "9" * 5000, f'{{"a": {"9" * 5000}}}'),
        ('<|open|>argument key="a" type="number"<|sep|>NaN', '{"a": "NaN"}'),
        ('<|open|>argument key="a" type="number"<|sep|>-Infinity', '{"a": "-Infinity"}'),
        ('<|open|>argument key="a" type="object"<|sep|>{"b": Infinity}',
         '{"a": "{\\"b\\": Infinity}"}'),
        ('<|open|>argument key="a" type="array"<|sep|>' + "[" * 50_000 + "]" * 50_000,
         '{"a": "' + "[" * 50_000 + "]" * 50_000 + '"}'),
        ('<|open|>argument  key="a"  type = "number"<|sep|>1', '{"a": 1}'),
    ],
)  # fmt: skip
def test_arguments(body, arguments):
    text = '<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool="f"<|sep|>' + body
    parsed = parse_response(text)
    assert parsed.tool_calls == (ToolCall("f", arguments, complete=False),)
    assert parsed.extra == ""


def test_what_does_not_fit_a_call_is_kept():
    text = (
        '<|open|>tools<|sep|>x<|open|>call<|sep|>y<|open|>call tool="f"<|sep|>z'
        '<|open|>json<|sep|>{}<|close|>json<|sep|><|open|>argument key="k"<|sep|>v'
    )
    parsed = parse_response(text)
    assert parsed.tool_calls == (ToolCall("f", "{}", complete=False),)
    assert parsed.extra == 'x<|open|>call<|sep|>yz<|open|>argument key="k"<|sep|>v'


@pytest.mark.parametrize("tag", ["call", 'call tool=""', 'call index="1"'])
def test_a_call_without_a_name_is_no_call(tag):
    call = f'<|open|>{tag}<|sep|><|open|>argument key="k"<|sep|>v<|close|>argument<|sep|>'
    parsed = parse_response(f"<|close|>think<|sep|><|open|>tools<|sep|>{call}<|end_of_msg|>")
    assert parsed == ParsedResponse("", "", (), call, True)


def test_the_end_cuts_a_tag_off_in_a_call():
    head = '<|open|>tools<|sep|><|open|>call tool="f"<|sep|><|open|>argument key="k" type="number"'
    for tag in ("<|close|>", "<|close|>argu", '<|open|>argument key="'):
        parsed = parse_response(head + "<|sep|>1" + tag + "<|end_of_msg|>")
        assert parsed.tool_calls == (ToolCall("f", '{"k": 1}', complete=False),)
        assert parsed.extra == tag


def test_ids_tell_markers_from_their_names(tokenizer):
    special = tokenizer.special
    ids = tokenizer.encode("a<|close|>think<|sep|>b")
    assert parse_response(ids, tokenizer).think == "a<|close|>think<|sep|>b"
    ids += [special.close, *tokenizer.encode("think"), special.sep, special.end_of_msg]
    parsed = parse_response(ids, tokenizer)
    assert parsed == ParsedResponse("a<|close|>think<|sep|>b", "", (), "", True)


def test_stop_ids_end_the_message_and_other_control_ids_are_text(tokenizer):
    special = tokenizer.special
    media_pad = special.bos + 21
    ids = [*tokenizer.encode("a"), media_pad, special.eos, special.pad, special.pad]
    assert parse_response(ids, tokenizer) == ParsedResponse("a<|media_pad|>", "", (), "", True)


def test_half_a_character(tokenizer):
    ids = [i for i in range(256) if tokenizer.decode_bytes([i]) == b"\xc3"]
    assert parse_response(ids, tokenizer).think == "\ufffd"


def test_bad_input(tokenizer):
    with pytest.raises(ChatError, match="start: expected 'think' or 'response', found 'tools'"):
        parse_response("", start="tools")
    with pytest.raises(ChatError, match="token ids need a tokenizer"):
        parse_response([1])
    with pytest.raises(TokenizerError, match="found 5000"):
        parse_response([5000], tokenizer)
    for output in (None, 5, b"ab", [1.0], [True], [[1]], ["1"], [None]):
        with pytest.raises(TokenizerError, match="^token ids?: expected .* found"):
            parse_response(output, tokenizer)


PIECES = st.lists(st.sampled_from([*MARKERS, *TAGS, "x", " ", "Ω"]), max_size=30)


@settings(max_examples=300, deadline=None)
@given(PIECES, st.sampled_from(["think", "response"]))
def test_no_letter_is_lost(pieces, start):
    """The text outside tags comes out, whatever the model writes."""
    parsed = parse_response("".join(pieces), start=start)
    calls = "".join(call.arguments for call in parsed.tool_calls)
    out = parsed.think + parsed.response + calls + parsed.extra
    for letter in "xΩ":
        assert out.count(letter) == pieces.count(letter)


TEXT = st.lists(
    st.one_of(st.text(max_size=10), st.sampled_from(["<|open|>", FULL, "<|end_of_msg|>"])),
    max_size=3,
).map("".join)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=5,
)
CALL = st.builds(
    lambda name, arguments: {"name": name, "arguments": arguments},
    st.text(min_size=1),
    st.dictionaries(TEXT, VALUES, max_size=3) | st.just("no json"),
)


@settings(max_examples=150, deadline=None)
@given(TEXT, TEXT, st.lists(CALL, max_size=3), st.sampled_from(["off", "low", "max"]))
def test_parse_undoes_encode(tokenizer, think, response, calls, thinking):
    question = {"role": "user", "content": "Hi"}
    message = {
        "role": "assistant",
        "content": response,
        "reasoning_content": think,
        "tool_calls": calls,
    }
    prompt = encode_chat([question], tokenizer, thinking=thinking)
    history = encode_chat([question, message], tokenizer, thinking=thinking)
    end = len(history) - history[::-1].index(tokenizer.special.end_of_msg)
    # The prompt ends inside the message, so what follows it is what the model would have written.
    assert history[: len(prompt)] == prompt
    start = "response" if thinking == "off" else "think"
    parsed = parse_response(history[len(prompt) : end], tokenizer, start=start)
    assert parsed.complete
    assert parsed.extra == ""
    assert parsed.think == ("" if thinking == "off" else think)
    assert parsed.response == response
    assert [call.name for call in parsed.tool_calls] == [call["name"] for call in calls]
    for call, sent in zip(parsed.tool_calls, calls, strict=True):
        if isinstance(sent["arguments"], str):
            assert call.arguments == sent["arguments"]
        else:
            assert json.loads(call.arguments) == sent["arguments"]
    again = encode_chat([question, parsed.to_message()], tokenizer, thinking=thinking)
    assert again == history
