import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.errors import InputError
from kimi.text.stop import StopStrings

AB = st.text(alphabet="ab", max_size=12)


def whole(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is completed first, found without any streaming."""
    for end in range(len(text) + 1):
        done = [s for s in stops if text[:end].endswith(s)]
        if done:
            stop = max(done, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(max_examples=300, deadline=None)
@given(AB, st.lists(AB.filter(bool), max_size=3), st.lists(st.integers(0, 12), max_size=6))
def test_cuts_do_not_matter(text, stops, cuts):
    stream, positions = StopStrings(stops), sorted(c for c in cuts if c <= len(text))
    out = ""
    for a, b in zip([0, *positions], [*positions, len(text)], strict=True):
        out += stream.push(text[a:b])
        assert whole(text, stops)[0].startswith(out)
    assert (out + stream.finish(), stream.found) == whole(text, stops)
    assert stream.finish() == ""


def test_only_what_may_become_a_stop_string_is_held_back():
    stream = StopStrings("###")
    assert [stream.push(c) for c in "a##b#"] == ["a", "", "", "##b", ""]
    assert stream.found is None
    assert stream.push("##c") == ""
    assert stream.found == "###"
    assert stream.push("later") == stream.finish() == ""


@pytest.mark.parametrize("stops", [None, 5, b"a", {"a"}, "", ["a", ""], ["a", 5], [b"a"], [None]])
def test_bad_stop_strings(stops):
    with pytest.raises(InputError, match="^stop: expected .* found"):
        StopStrings(stops)
