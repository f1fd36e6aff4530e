import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.errors import InputError, TokenizerError
from kimi.text.tokenizer import CONFIG_FILE, RANKS_FILE, Tokenizer, split_long

# Hypothesis text has no surrogates, so it is exactly what UTF-8 can express.
CONTROL_NAMES = ["<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]", "[PAD]"]
TEXT = st.lists(
    st.one_of(
        st.text(max_size=20), st.sampled_from([*CONTROL_NAMES, "don't", "I'LL", "漢字", "\r\n"])
    )
).map("".join)


def test_layout(tokenizer):
    special = tokenizer.special
    assert tokenizer.vocab_size == 2048
    assert (special.bos, special.eos, special.end_of_msg) == (1792, 1793, 1794)
    assert (special.open, special.close, special.sep) == (1795, 1796, 1797)
    assert special.pad == 2047
    assert tokenizer.stop_ids == {1793, 1794, 2047}


def test_kimi_k3_layout():
    """K3 has 163,584 ranks; the ids of its control tokens are a fact of the checkpoint."""
    ranks = {bytes([b]): b for b in range(256)}
    ranks |= {b"\0\0" + i.to_bytes(3): i for i in range(256, 163_584)}
    names = {i: f"<|reserved_token_{i}|>" for i in range(163_584, 163_840)}
    tokenizer = Tokenizer(ranks, names)
    special = tokenizer.special
    assert tokenizer.vocab_size == 163_840
    assert (special.bos, special.end_of_msg, special.sep) == (163_584, 163_586, 163_589)
    assert tokenizer.stop_ids == {163_585, 163_586, 163_839}


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("the", ["the"]),
        (" the", [" the"]),
        ("1234", ["1234"[:3], "4"]),
        ("漢字かな", ["漢字", "かな"]),
        ("fooBar", ["foo", "Bar"]),
        ("HTTPServer's", ["HTTPServer's"]),
        ("don't  stop", ["don't", " ", " stop"]),
        ("I'LL", ["I'LL"]),
        ("a.\n\nb", ["a", ".\n\n", "b"]),
        ("  \n  x", ["  \n", " ", " x"]),
        ("x   ", ["x", "   "]),
        ("\u00e9\u0301t\u00e9", ["\u00e9\u0301t\u00e9"]),
    ],
)
def test_text_is_split_before_merging(tokenizer, text, pieces):
    """Ids of the whole are the ids of the pieces, and no token crosses a boundary."""
    assert tokenizer.encode(text) == [i for piece in pieces for i in tokenizer.encode(piece)]
    ends, at = set(), 0
    for i in tokenizer.encode(text):
        at += len(tokenizer.decode_bytes([i]))
        ends.add(at)
    borders = np.cumsum([len(piece.encode()) for piece in pieces])
    assert set(borders.tolist()) <= ends


def test_digits_and_han_never_merge_across_the_pattern(tokenizer):
    assert tokenizer.encode("123456") == tokenizer.encode("123") + tokenizer.encode("456")
    assert tokenizer.encode("漢a") == tokenizer.encode("漢") + tokenizer.encode("a")


@settings(max_examples=200, deadline=None)
@given(TEXT)
def test_round_trip(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert all(0 <= i < tokenizer.special.bos for i in ids)


@settings(max_examples=100, deadline=None)
@given(
    st.text(alphabet=" \n\u00a0ab漢\U0001f600", max_size=200), st.integers(1, 9), st.integers(1, 60)
)
def test_split_long_keeps_the_text(text, run, chunk):
    pieces = list(split_long(text, chunk, run))
    assert "".join(pieces) == text
    for piece in pieces:
        assert len(piece) <= chunk
        longest = current = 0
        for k, char in enumerate(piece):
            same = k > 0 and char.isspace() == piece[k - 1].isspace()
            current = current + 1 if same else 1
            longest = max(longest, current)
        assert longest <= run


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("aaaaabbbbbcc", ["aaaaa", "bbbbb", "cc"]),
        ("     #######", ["     #####", "##"]),
        ("ab cdefghij", ["ab cdefg", "hij"]),
        ("abcde fghij", ["abcde fghij"]),
        ("abcdefg  hijklm", ["abcde", "fg  hijkl", "m"]),
    ],
)
def test_split_long_cuts_only_inside_a_long_run(text, pieces):
    assert list(split_long(text, chunk=100, run=5)) == pieces


def test_long_run_is_encoded_in_pieces(tokenizer):
    text = "a" * 25_000 + "b" * 3 + " " * 30_000
    ids = tokenizer.encode(text)
    parts = ["a" * 25_000, "bbb" + " " * 25_000, " " * 5_000]
    assert ids == [i for part in parts for i in tokenizer.encode(part)]
    assert tokenizer.decode(ids) == text


def test_long_text_is_encoded_in_chunks(tokenizer):
    text = "ab " * 140_000
    ids = tokenizer.encode(text)
    assert ids == tokenizer.encode(text[:400_000]) + tokenizer.encode(text[400_000:])
    assert tokenizer.decode(ids) == text


def test_lone_surrogate_is_refused(tokenizer):
    with pytest.raises(InputError, match=r"character 2 is the lone surrogate U\+D83D"):
        tokenizer.encode("ab\ud83d")


@pytest.mark.parametrize("bad", [-1, 2048, 163_586])
def test_id_outside_the_vocabulary(tokenizer, bad):
    for method in (lambda: tokenizer.decode([0, bad]), lambda: tokenizer.check_ids([bad])):
        with pytest.raises(
            TokenizerError, match=f"expected an integer from 0 to 2047, found {bad}"
        ):
            method()


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (1.0, "1.0"), (True, "True"), (np.float32(1), "np.float32(1.0)"), (None, "None"),
        (np.bool_(True), "np.True_"), ("1", "'1'"), ([1], "[1]"), (np.array([1]), "array([1])"),
    ],
)  # fmt: skip
def test_id_that_is_no_integer(tokenizer, bad, found):
    message = re.escape(f"token id: expected an integer, found {found}")
    for method in (tokenizer.decode, tokenizer.decode_bytes, tokenizer.check_ids):
        with pytest.raises(TokenizerError, match=message):
            method([bad])


@pytest.mark.parametrize("bad", [None, 5, 1.5, b"ab", bytearray(b"ab"), np.array(5)])
def test_ids_that_are_no_list(tokenizer, bad):
    with pytest.raises(TokenizerError, match="token ids: expected a list of integers, found "):
        tokenizer.decode(bad)


def test_an_id_of_thousands_of_digits(tokenizer):
    with pytest.raises(
        TokenizerError, match="expected an integer of 64 bits, found a value of type int"
    ):
        tokenizer.decode([10**5000])


@pytest.mark.parametrize("bad", [None, 5, b"ab", ["ab"]])
def test_text_that_is_none(tokenizer, bad):
    with pytest.raises(InputError, match="text: expected a text, found "):
        tokenizer.encode(bad)


def test_every_id_decodes(tokenizer):
    ids = np.arange(tokenizer.vocab_size)
    assert tokenizer.decode_bytes(ids) == b"".join(tokenizer.decode_bytes([i]) for i in ids)
    assert len({tokenizer.decode_bytes([i]) for i in ids}) == tokenizer.vocab_size


def test_names(tokenizer):
    assert tokenizer.decode([1795, 2045]) == "<|open|><|reserved_token_2045|>"
    assert tokenizer.decode([1792, *tokenizer.encode("hi"), 2047]) == "[BOS]hi[PAD]"


# ---- files that do not fit


@pytest.fixture
def broken(assets: Path, tmp_path: Path) -> Path:
    for name in (RANKS_FILE, CONFIG_FILE):
        shutil.copyfile(assets / name, tmp_path / name)
    return tmp_path


def change_line(directory: Path, number: int, line: str | None) -> None:
    path = directory / RANKS_FILE
    lines = path.read_text().split("\n")
    lines[number - 1 : number] = [] if line is None else [line]
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("number", "line", "message"),
    [
        (300, "%%%% 299", "line 300: expected a base64 token, found b'%%%%'"),
        (300, "YQ 299", "line 300: expected a base64 token"),
        (300, "YR== 299", "line 300: expected a base64 token"),
        (300, "YWJj", "line 300: expected 'base64 rank', found 1 fields"),
        (300, "YWJj 299 7", "line 300: expected 'base64 rank', found 3 fields"),
        (300, "YWJjZGVm two", "line 300: expected a whole-number rank, found b'two'"),
        (300, "YWJjZGVm " + "9" * 5000, "line 300: expected a whole-number rank, found b'999"),
        (300, "YWJjZGVm -1", "line 300: expected a whole-number rank, found b'-1'"),
        (300, "YQ== 299", "line 300: token b'a' appears twice, first on line 98"),
        (300, "YWJjZGVm 5", "line 300: rank 5 appears twice, first on line 6"),
        (300, "YWJjZGVm 5000", "line 300: 1792 tokens need ranks 0..1791, found rank 5000"),
        (300, None, "line 1791: 1791 tokens need ranks 0..1790, found rank 1791 and no rank 299"),
        (98, "YWJjZGVm 97", "expected all 256 single-byte tokens, found none for byte 0x61"),
    ],
)
def test_bad_rank_file(broken, number, line, message):
    change_line(broken, number, line)
    with pytest.raises(TokenizerError) as error:
        Tokenizer.from_dir(broken)
    assert str(error.value).startswith(str(broken / RANKS_FILE) + ": ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_empty_rank_file(broken):
    (broken / RANKS_FILE).write_text("\n")
    with pytest.raises(TokenizerError, match="expected 'base64 rank' lines, found none"):
        Tokenizer.from_dir(broken)


@pytest.mark.parametrize("name", [RANKS_FILE, CONFIG_FILE])
def test_missing_file(broken, name):
    (broken / name).unlink()
    with pytest.raises(TokenizerError, match=f"{name}: no such file"):
        Tokenizer.from_dir(broken)


def test_ranks_of_another_size_do_not_fit_the_config(broken):
    with (broken / RANKS_FILE).open("a") as file:
        file.write(base64.b64encode(b"a quite new token").decode() + " 1792\n")
    with pytest.raises(TokenizerError, match=r"expected a reserved id 1793\.\.2048"):
        Tokenizer.from_dir(broken)


def entry(content: object) -> dict[str, object]:
    return {"content": content, "special": True}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"2048": entry("x")}, r"\['2048'\]: expected a reserved id 1792\.\.2047"),
        ({"7": entry("x")}, r"\['7'\]: expected a reserved id 1792\.\.2047"),
        ({"one": entry("x")}, r"\['one'\]: expected a reserved id"),
        ({"1800": "x"}, r"\['1800'\]: expected a 'content' string, found None"),
        ({"1800": entry(5)}, r"\['1800'\]: expected a 'content' string, found 5"),
        ({"1800": entry("\ud800")}, r"\['1800'\]: expected a 'content' string, found '\\ud800'"),
        ({"1800": entry("[PAD]")}, r"'\[PAD\]' names both 1800 and 2047"),
        ({"1795": entry("<|im_user|>")}, r"expected '<\|open\|>' at id 1795 .* no such token"),
        (
            {"1795": entry("<|close|>"), "1796": entry("<|open|>")},
            r"expected '<\|open\|>' at id 1795 \(1792 ranks \+ 3\), found 1796",
        ),
    ],
)
def test_bad_added_tokens(broken, changes, message):
    path = broken / CONFIG_FILE
    config = json.loads(path.read_text())
    config["added_tokens_decoder"] |= changes
    path.write_text(json.dumps(config))
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_dir(broken)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("\xff", "not valid JSON"),
        ("[]", "added_tokens_decoder: expected an object, found NoneType"),
        ("{}", "added_tokens_decoder: expected an object, found NoneType"),
        ('{"added_tokens_decoder": []}', "added_tokens_decoder: expected an object, found list"),
    ],
)
def test_bad_config_file(broken, text, message):
    (broken / CONFIG_FILE).write_text(text, encoding="latin-1")
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_dir(broken)


def test_a_reserved_id_may_get_a_name(broken):
    path = broken / CONFIG_FILE
    config = json.loads(path.read_text())
    config["added_tokens_decoder"]["1801"] = entry("[EOT]")
    path.write_text(json.dumps(config))
    tokenizer = Tokenizer.from_dir(broken)
    assert tokenizer.decode([1801]) == "[EOT]"
    assert tokenizer.encode("[EOT]") != [1801]
