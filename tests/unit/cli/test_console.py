"""What commands read and write at the terminal."""

import io

import pytest

from kimi.cli.console import read_line, read_text
from kimi.errors import InputError


def give(monkeypatch, data: bytes) -> None:
    # A decoder of the locale that would fail or guess: it is not asked.
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


def test_standard_input_is_utf8_whatever_the_locale(monkeypatch):
    give(monkeypatch, "\ufeffnaïve\r\n2".encode())
    assert read_text() == "naïve\n2"


def test_a_byte_that_is_not_utf8_is_named(monkeypatch):
    give(monkeypatch, b"caf\xe9 au lait\n")
    expected = "standard input: expected UTF-8, found byte 0xe9 at position 3"
    with pytest.raises(InputError, match=f"^{expected}$"):
        read_text()


def test_the_lines_after_a_wrong_one_can_be_read(monkeypatch):
    give(monkeypatch, "é\nca\xe9\r\n".encode() + b"ca\xe9\nlast")
    assert read_line() == "é\n" and read_line() == "caé\n"
    with pytest.raises(InputError, match="found byte 0xe9 at position 2"):
        read_line()
    assert read_line() == "last" and read_line() == ""


def test_closed_standard_input_is_reported(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    for read in (read_text, read_line):
        with pytest.raises(InputError, match="standard input: expected text, found it closed"):
            read()
