import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.text.xtml import XtmlWriter, escape, parse_tag, unescape


def test_escape_order():
    assert escape('a&b"c&quot;') == "a&amp;b&quot;c&amp;quot;"


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='&;"quotamp <>\n') | st.text())
def test_attribute_round_trip(value):
    assert unescape(escape(value)) == value
    assert parse_tag(f'call tool="{escape(value)}" index="1"') == (
        "call", {"tool": value, "index": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", " call", "call ", "call tool=x", 'call tool="x', 'call tool="x"y', "é"],
)
def test_no_tag(text):
    assert parse_tag(text) is None


@pytest.mark.parametrize("text", ['call  tool="x y"', 'call\ttool = "x y"', 'call\n tool= "x y"'])
def test_spaces_inside_a_tag(text):
    assert parse_tag(text) == ("call", {"tool": "x y"})


def test_an_attribute_is_four_texts(tokenizer):
    """Punctuation at the end of a value must not merge with the quote after it."""
    writer = XtmlWriter(tokenizer)
    writer.open("argument", {"key": "Go."})
    special = tokenizer.special
    texts = [i for part in ("argument", " key", '="', "Go.", '"') for i in tokenizer.encode(part)]
    assert writer.ids == [special.open, *texts, special.sep]
    assert texts != tokenizer.encode('argument key="Go."')
