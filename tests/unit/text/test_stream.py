import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.errors import TokenizerError
from kimi.text.stream import StreamDecoder


def byte_ids(tokenizer, data: bytes) -> list[int]:
    """One token per byte, so that characters are spread over tokens."""
    return [next(i for i in range(256) if tokenizer.decode_bytes([i]) == bytes([b])) for b in data]


def test_a_character_comes_out_whole(tokenizer):
    stream = StreamDecoder(tokenizer)
    assert [stream.push([i]) for i in byte_ids(tokenizer, "é😀".encode())] == [
        "", "é", "", "", "", "😀",
    ]  # fmt: skip
    assert stream.finish() == ""


def test_finish_flushes_half_a_character_and_starts_anew(tokenizer):
    stream = StreamDecoder(tokenizer)
    assert stream.push(byte_ids(tokenizer, "a😀".encode()[:-1])) == "a"
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""
    assert stream.push(byte_ids(tokenizer, b"b")) == "b"


def test_control_tokens_come_by_name(tokenizer):
    special = tokenizer.special
    assert StreamDecoder(tokenizer).push([special.open, special.pad]) == "<|open|>[PAD]"


def test_bad_id_consumes_nothing(tokenizer):
    stream = StreamDecoder(tokenizer)
    head, tail = byte_ids(tokenizer, "é".encode())
    stream.push([head])
    with pytest.raises(TokenizerError):
        stream.push([tail, 5000])
    assert stream.push([tail]) == "é"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_joined_pushes_are_the_whole_text(tokenizer, data):
    ids = data.draw(
        st.one_of(
            st.text().map(tokenizer.encode),
            st.text().map(lambda text: byte_ids(tokenizer, text.encode())),
            st.lists(st.integers(0, tokenizer.vocab_size - 1)),
        )
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    stream = StreamDecoder(tokenizer)
    out = [stream.push(ids[a:b]) for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert "".join(out) + stream.finish() == tokenizer.decode(ids)


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_what_is_out_is_final(tokenizer, text):
    """Every push of valid text leaves a prefix of it: no placeholder that would be taken back."""
    stream, seen = StreamDecoder(tokenizer), ""
    for i in byte_ids(tokenizer, text.encode()):
        seen += stream.push([i])
        assert text.startswith(seen)
    assert seen == text
