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

BOTTOMLESS: list = []
for _ in range(10_000):
    BOTTOMLESS = [BOTTOMLESS]


def arguments(value: object) -> tuple[Argument, ...] | str:
    return parse_calls([{"name": "f", "arguments": value}], "calls")[0].arguments


def test_schema_json_sorts_every_level_and_has_no_spaces():
    schema = {"b": [{"z": 1, "a": "é ü"}], "a": {"d": None, "c": True}}
    assert schema_json(schema, "x") == '{"a":{"c":true,"d":null},"b":[{"a":"é ü","z":1}]}'


@pytest.mark.parametrize("value", [print, math.nan, math.inf, -math.inf, [10**5000], BOTTOMLESS])
def test_schema_json_refuses_what_is_not_json(value):
    with pytest.raises(ChatError, match="tools: expected JSON data"):
        schema_json([{"f": value}], "tools")


@pytest.mark.parametrize("tools", ["x", {"a": 1}, ["f"], [None], BOTTOMLESS, [10**5000]])
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
        "{", "{'a': 1}", '{"a": 1', '{"a" 1}', '{"a": 1,}', "[1]", "7", "null", "  ", "{1: 2}",
        '{"a":' + "[" * 100_000, '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", 'x {"a": 1}',
        "{,}",
    ],
)  # fmt: skip
def test_text_that_is_not_one_object_is_kept_as_it_is(text):
    assert arguments(text) == text


@pytest.mark.parametrize("junk", [" junk", "}", '{"b": 2}', ",", "\ud800"])
def test_text_after_a_complete_object_is_ignored(junk):
    assert arguments('{"a": 1}' + junk) == (Argument("a", "number", "1"),)
    assert arguments("{}" + junk) == ()


def test_what_python_reads_as_json_keeps_its_spelling():
    """Control characters, numbers of any size, and the three constants that JSON does not have."""
    digits = "9" * 5000
    text = f'{{"s": "a\n\tb", "n": {digits}, "l": [{digits}, -Infinity], "x": NaN, "u": "\\ud800"}}'
    assert arguments(text) == (
        Argument("s", "string", "a\n\tb"),
        Argument("n", "number", digits),
        Argument("l", "array", f"[{digits}, -Infinity]"),
        Argument("x", "number", "NaN"),
        Argument("u", "string", "\ud800"),
    )


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
        ([{"id": 5.0, "name": "f"}], r"calls\[0\]\.id: expected a string or .*, found 5\.0"),
        ([{"id": True, "name": "f"}], r"calls\[0\]\.id: expected a string or .*, found True"),
        ([{"id": 10**5000, "name": "f"}], r"calls\[0\]\.id: .*, found a value of type int"),
        ([{"name": "f", "arguments": [1]}], r"arguments: expected an object or its JSON text"),
        ([{"name": "f", "arguments": {1: 2}}], "arguments: expected string keys, found 1"),
        ([{"name": "f", "arguments": {"a": {1j}}}], r"arguments\['a'\]: expected JSON data"),
        ([{"name": "f", "arguments": {"a": 10**5000}}], r"arguments\['a'\]: expected JSON data"),
        ([{"name": "f", "arguments": {"a": BOTTOMLESS}}], r"arguments\['a'\]: expected JSON data"),
        ([{"name": "f", "type": BOTTOMLESS}], r"type: expected 'function', found a value of"),
    ],
)
def test_bad_calls(calls, message):
    with pytest.raises(ChatError, match=message):
        parse_calls(calls, "calls")


def test_both_call_styles():
    nested = {"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": math.pi}}}
    flat = {"id": "x", "name": "f", "arguments": {"a": math.pi}}
    assert parse_calls([nested], "c") == parse_calls([flat], "c")
    assert parse_calls([nested | {"type": None}], "c") == parse_calls([flat], "c")
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


def test_integer_ids():
    calls = parse_calls([{"id": 7, "name": "f"}, {"id": "8", "name": "g"}], "c")
    results = [{"tool_call_id": 8}, {"tool_call_id": "7"}]
    assert order_results(results, calls) == [(1, "f"), (0, "g")]
    with pytest.raises(ChatError, match=r"\.id: expected a string or a 64-bit integer, found 1\.5"):
        order_results([{"id": 1.5}], calls)


def test_the_first_of_equal_ids_counts():
    calls = [Call("a", "f", ()), Call("a", "g", ())]
    assert order_results([{"tool_call_id": "a"}], calls) == [(0, "f")]
    assert order_results([{"id": "a"}], calls) == [(0, "f")]
