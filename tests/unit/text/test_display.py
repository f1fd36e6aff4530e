import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.errors import TokenizerError
from kimi.text.display import ChatDisplay

TAGS = ["think", "response", "tools", "message", 'call tool="f"', 'argument key="k"', "call", "res"]
PIECES = st.lists(st.sampled_from(["open", "close", "sep", "end_of_msg", "eos", *TAGS, "x", "é"]))


@pytest.fixture(scope="module")
def ids_of(tokenizer):
    """Ids of pieces: names of control tokens, and text."""
    special = tokenizer.special

    def ids(*pieces: str) -> list[int]:
        found: list[int] = []
        for piece in pieces:
            control = getattr(special, piece, None)
            found += tokenizer.encode(piece) if control is None else [control]
        return found

    return ids


def show(tokenizer, ids: list[int], size: int = 10_000) -> str:
    display = ChatDisplay(tokenizer)
    pieces = [display.push(ids[i : i + size]) for i in range(0, len(ids), size)]
    text = "".join(pieces) + display.finish()
    assert display.finish() == ""
    return text


ANSWER = ("open", "response", "sep", "Yes.", "close", "response", "sep")
CALL = ("open", "tools", "sep", "open", 'call tool="f"', "sep", "open", 'argument key="k"', "sep")


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (("Hm.", "close", "think", "sep", *ANSWER), "Hm.\nYes."),
        (ANSWER, "Yes."),
        (("Hm.", *ANSWER, *CALL, "1"), 'Hm.\nYes.\n[call tool="f"] [argument key="k"] 1'),
        # Cut off in a tag, by the end of the output or by that of the message.
        (("Hi", "close"), "Hi"),
        (("Hi", "close", "resp"), "Hi"),
        (("Hi", "close", "response"), "Hi"),
        (("Hi", "close", "response", "end_of_msg"), "Hi"),
        (("Hi", "open", 'call  tool="f', "eos", "pad"), "Hi"),
        ((*CALL, "1", "close", "argu", "pad"), '[call tool="f"] [argument key="k"] 1'),
        # Markers outside the structure; text after one is kept.
        (("Hi", "sep", "Ho", "close", "close", "response", "sep"), "HiHo"),
        (("Hi", "open", " and so on", "close", "think", "sep"), "Hi and so on"),
        # A channel that is opened twice continues in its line.
        (("Hm, ", "open", "think", "sep", "so", *ANSWER, *ANSWER), "Hm, so\nYes.Yes."),
        (("open", "quote", "sep", "Hi", "close", "quote", "sep"), "[quote] Hi"),
    ],
)
def test_shown_text(tokenizer, ids_of, pieces, text):
    assert show(tokenizer, ids_of(*pieces)) == text


@settings(max_examples=200, deadline=None)
@given(PIECES, st.integers(1, 5))
def test_no_markup_whatever_the_model_writes(tokenizer, ids_of, pieces, size):
    ids = ids_of(*pieces)
    whole = show(tokenizer, ids)
    assert show(tokenizer, ids, size) == whole
    assert "<|" not in whole
    assert "[EOS]" not in whole


def test_finish_starts_anew(tokenizer, ids_of):
    display = ChatDisplay(tokenizer)
    first = ids_of("Hm.", "close", "think", "sep", *ANSWER, "close")
    assert display.push(first) + display.finish() == "Hm.\nYes."
    assert display.push(first) + display.finish() == "Hm.\nYes."


@pytest.mark.parametrize("bad", [5000, -1, 1.0, True, None, "a"])
def test_bad_id_consumes_nothing(tokenizer, ids_of, bad):
    display = ChatDisplay(tokenizer)
    with pytest.raises(TokenizerError):
        display.push([*ids_of("Hi", "open"), bad])
    assert display.push(ids_of("Ho")) == "Ho"
