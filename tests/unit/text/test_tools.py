import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.errors import ChatError
from kimi.text.tools import (
    Argument,
    Call,
    check_tools,
    order_results,
    parse_calls,
    schema_json,
    xtml_type,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def arguments(value: object) -> tuple[Argument, ...] | str:
    return parse_calls([{"name": "f", "arguments": value}], "calls")[0].arguments


def test_schema_json_sorts_every_level_and_has_no_spaces():
    schema = {"b": [{"z": 1, "a": "é ü"}], "a": {"d": None, "c": True}}
    assert schema_json(schema, "x") == '{"a":{"c":true,"d":null},"b":[{"a":"é ü","z":1}]}'


def test_schema_json_refuses_what_is_not_json():
    with pytest.raises(ChatError, match="tools: expected JSON data"):
        schema_json([{"f": print}], "tools")


@pytest.mark.parametrize("tools", ["x", {"a": 1}, ["f"], [None]])
def test_bad_tools(tools):
    with pytest.raises(ChatError, match="tools: expected a list of tool objects"):
        check_tools(tools, "tools")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"), (True, "boolean"), (0, "number"), (1.5, "number"), ("", "string"),
        ({}, "object"), ([], "array"),
    ],
)  # fmt: skip
def test_types(value, kind):
    assert xtml_type(value) == kind


def test_object_arguments_are_written_like_json_dumps():
    value = {"s": 'a "b"', "n": 1.0, "b": False, "z": None, "o": {"ü": [1, 2]}, "l": [{"a": 1}]}
    assert arguments(value) == (
        Argument("s", "string", 'a "b"'),
        Argument("n", "number", "1.0"),
        Argument("b", "boolean", "false"),
        Argument("z", "null", "null"),
        Argument("o", "object", '{"ü": [1, 2]}'),
        Argument("l", "array", '[{"a": 1}]'),
    )


def test_text_arguments_keep_their_spelling():
    text = ' {"n" : 1e2 ,"l":[1,2,  3],\n"s":"a\\u00e9\\n", "n":-0.10} '
    assert arguments(text) == (
        Argument("n", "number", "1e2"),
        Argument("l", "array", "[1,2,  3]"),
        Argument("s", "string", "aé\n"),
        Argument("n", "number", "-0.10"),
    )


@pytest.mark.parametrize("empty", [None, "", {}, "{}", " { } "])
def test_no_arguments(empty):
    assert arguments(empty) == ()


@pytest.mark.parametrize(
    "text",
    [
        "{", "{'a': 1}", '{"a": 1', '{"a" 1}', '{"a": 1,}', '{"a": 1} x', '{"a": 1}{"b": 2}', "[1]",
        "7", "null", "  ", "{1: 2}", '{"a":' + "[" * 100_000,
    ],
)  # fmt: skip
def test_text_that_is_not_one_object_is_kept_as_it_is(text):
    assert arguments(text) == text


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(), JSON), st.sampled_from([None, (",", ":")]))
def test_text_and_object_agree(value, separators):
    text = json.dumps(value, separators=separators)
    parsed = arguments(text)
    assert [(a.key, a.type) for a in parsed] == [(a.key, a.type) for a in arguments(value)]
    for a in parsed:
        assert (a.text if a.type == "string" else json.loads(a.text)) == value[a.key]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ("f", "calls: expected a list of tool calls, found str"),
        ([1], r"calls\[0\]: expected a tool call object, found int"),
        ([{"name": "f"}, {}], r"calls\[1\]: expected a tool name, found None"),
        ([{"function": "f"}], r"calls\[0\]\.function: expected an object, found str"),
        ([{"function": {"name": ""}}], r"calls\[0\]: expected a tool name, found ''"),
        ([{"type": "custom", "name": "f"}], r"calls\[0\]\.type: expected 'function'"),
        ([{"id": 5, "name": "f"}], r"calls\[0\]\.id: expected a string, found 5"),
        ([{"name": "f", "arguments": [1]}], r"arguments: expected an object or its JSON text"),
        ([{"name": "f", "arguments": {1: 2}}], "arguments: expected string keys, found 1"),
        ([{"name": "f", "arguments": {"a": {1j}}}], r"arguments\['a'\]: expected JSON data"),
    ],
)
def test_bad_calls(calls, message):
    with pytest.raises(ChatError, match=message):
        parse_calls(calls, "calls")


def test_both_call_styles():
    nested = {"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": math.pi}}}
    flat = {"id": "x", "name": "f", "arguments": {"a": math.pi}}
    assert parse_calls([nested], "c") == parse_calls([flat], "c")
    assert parse_calls(None, "c") == []


CALLS = [Call("a", "f", ()), Call("b", "g", ()), Call(None, "h", ())]


@pytest.mark.parametrize(
    ("ids", "order"),
    [
        (["a", "b"], [(0, "f"), (1, "g")]),
        (["b", "a"], [(1, "f"), (0, "g")]),
        (["b", "a", "b"], [(1, "f"), (0, "g"), (2, "g")]),
        (["b", "nobody", "a"], [(0, None), (1, None), (2, None)]),
        (["b", None], [(0, None), (1, None)]),
        ([], []),
    ],
)
def test_results_follow_the_calls(ids, order):
    results = [{"role": "tool", "tool_call_id": i} if i else {"role": "tool"} for i in ids]
    assert order_results(results, CALLS) == order


def test_the_first_of_equal_ids_counts():
    calls = [Call("a", "f", ()), Call("a", "g", ())]
    assert order_results([{"tool_call_id": "a"}], calls) == [(0, "f")]
    assert order_results([{"id": "a"}], calls) == [(0, "f")]
