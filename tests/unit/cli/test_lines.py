"""Lines from pipes and terminals."""

import io
import stat

import pytest

from kimi.cli.lines import piped_lines
from kimi.errors import InputError
from tests.unit.cli.terminal import Terminal

ECHO = """
from kimi.process import begin
begin()
from kimi.cli.lines import typed_lines
try:
    for line in typed_lines(print):
        print("read", repr(line))
except KeyboardInterrupt:
    print("ended by Ctrl-C")
"""


def test_a_wrong_line_of_a_pipe_is_reported_and_skipped(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\nca\xe9\n\nlast")))
    reported = []
    lines = [line.rstrip("\n") for line in piped_lines(reported.append)]
    assert [line for line in lines if line] == ["one", "last"]
    assert reported == [
        "error: line 2: standard input: expected UTF-8, found byte 0xe9 at position 2"
    ]


def test_closed_input_is_an_error(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="found it closed"):
        list(piped_lines(print))


def test_a_terminal_has_editing_and_history(tmp_path):
    """Arrows, Ctrl-C in a line, Ctrl-D; then a second session."""
    with Terminal(ECHO, KIMI_CACHE_DIR=str(tmp_path / "new")) as terminal:
        terminal.wait_for("> ")
        terminal.type(b"ac\x1b[Db\n")  # a step to the left before the b
        terminal.wait_for("read 'abc'")
        terminal.wait_for("> ")
        terminal.type(b"thrown away")
        terminal.wait_for("away")
        terminal.type(b"\x03")
        terminal.wait_for("> ")
        terminal.type(b"\x04")
        assert terminal.ends() == 0
    [history] = (tmp_path / "new").iterdir()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with Terminal(ECHO, KIMI_CACHE_DIR=str(tmp_path / "new")) as terminal:
        terminal.wait_for("> ")
        terminal.type(b"\x1b[A!\n")  # the line before
        terminal.wait_for("read 'abc!'")
        terminal.wait_for("> ")
        terminal.type(b"\x03")
        terminal.wait_for("ended by Ctrl-C")
        assert terminal.ends() == 0
    assert "thrown" not in history.read_text() and "abc!" in history.read_text()
