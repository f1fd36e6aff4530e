"""The conversation at the terminal, with an engine that answers at once."""

import io
import signal

import pytest

from kimi import process
from kimi.cli import chat
from kimi.cli.main import main
from tests.unit.cli.fake import fake_engine
from tests.unit.cli.terminal import Terminal


@pytest.fixture
def talk(monkeypatch, capsys):
    """Runs `chat` on lines, with answers to give; returns exit code, answers, remarks, engine."""

    def run(lines: bytes, *answers: str, options=()):
        engine = fake_engine(*answers)
        monkeypatch.setattr(chat, "open_engine", lambda *_, **__: engine)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
        code = main(["chat", *options])
        shown, told = capsys.readouterr()
        return code, shown, told, engine.model

    return run


def test_a_line_a_turn(talk):
    """Empty lines are no turns; one that cannot be read is told, and is the exit code."""
    code, shown, told, model = talk(b"one\n\n  \ncaf\xe9\n two \r\nlast", "1", "2", "3")
    assert code == 2 and shown == "1\n2\n3\n"
    assert told.count("error: ") == 1 and "line 4: standard input: expected UTF-8" in told
    assert told.count("first after") == 3
    asked = model.asked
    assert len(asked) == 3 and "one" in asked[2] and "two" in asked[2] and "last" in asked[2]


def test_commands(talk):
    """They are not sent; what is no command is told, unless a blank before it says otherwise."""
    lines = b"one\n/reset\n/helo there\n /helo there\n/help\n/exit\nnever"
    code, shown, told, model = talk(lines, "1", "2", options=["--system", "Be brief."])
    assert code == 0 and shown == "1\n2\n"
    assert "error: /helo there: expected /help, /reset or /exit\n" in told
    assert chat.HELP in told and "[a new conversation]" in told
    first, second = model.asked
    assert "one" not in second and "/helo there" in second
    assert "Be brief." in first and "Be brief." in second


def test_a_full_conversation_says_what_to_do(talk):
    lines = b"one\n" + b"long " * 30 + b"\n/reset\ntwo\n" + b"longer " * 90
    options = ["--context", "100", "--max-tokens", "20"]
    code, shown, told, _ = talk(lines, "1", "2", options=options)
    assert code == 0 and shown == "1\n2\n"
    full = [line for line in told.splitlines() if line.startswith("error: ")]
    assert len(full) == 2
    assert "at most 100 in all" in full[0] and full[0].endswith("/reset begins a new conversation")
    assert "/reset" in full[1]


def test_a_message_too_long_for_an_empty_conversation(talk):
    _, _, told, _ = talk(b"long " * 90, options=["--context", "80", "--max-tokens", "20"])
    assert told.strip().endswith("; --context N gives more room")


@pytest.mark.parametrize(
    "options,message",
    [
        (["--temperature", "-1"], "temperature: expected a number from 0"),
        (["--max-tokens", "0"], "max tokens: expected at least 1, found 0"),
        (["--stop", ""], "stop: expected texts that are not empty"),
        (["--context", "0"], "context: expected at least 1, found 0"),
    ],
)
def test_wrong_options_end_it_at_once(talk, options, message):
    code, shown, told, _ = talk(b"one\n", options=options)
    assert code == 2 and shown == "" and message in told and told.count("\n") == 1


def test_a_stop_string_ends_an_answer_and_is_no_part_of_it(talk):
    _, shown, _, model = talk(b"one\ntwo", "hello END more", "2", options=["--stop", "END"])
    assert shown == "hello \n2\n" and "hello" in model.asked[1] and "END" not in model.asked[1]


def interrupting(talk, times):
    """Ctrl-C, `times` times, when the third token of the next answer is due."""
    whole = talk._steps

    def steps(*args):
        talk._steps = whole
        for number, ids in enumerate(whole(*args)):
            for _ in range(times if number == 2 else 0):
                signal.raise_signal(signal.SIGINT)
            yield ids

    talk._steps = steps


@pytest.fixture
def minded(monkeypatch):
    """Ctrl-C as in a program of ours, within this process."""
    before = signal.signal(signal.SIGINT, process._on_interrupt)
    yield
    signal.signal(signal.SIGINT, before)
    process._state.pending = False


def test_ctrl_c_stops_an_answer(minded, capsys):
    """The conversation is as it was before the message, and goes on."""
    engine = fake_engine("one two three four five", "2")
    talk = engine.chat(256)
    interrupting(talk, 1)
    chat.converse(talk, ["first", "second"], {"max_tokens": 20}, True)
    shown, told = capsys.readouterr()
    assert "five" not in shown and shown.endswith("\n2\n")
    assert told.startswith(chat.STOPPED + "\n") and "first" not in engine.model.asked[1]
    assert [m["content"] for m in talk.messages] == ["second", "2"]


@pytest.mark.parametrize("stops,times", [(True, 2), (False, 1)])
def test_ctrl_c_twice_or_without_a_terminal_ends_the_chat(minded, stops, times):
    talk = fake_engine("one two three four five").chat(256)
    interrupting(talk, times)
    with pytest.raises(KeyboardInterrupt):
        chat.converse(talk, ["first"], {"max_tokens": 20}, stops)


SLOW = """
from kimi.process import begin
begin()
import sys, time
from kimi.cli import chat
from kimi.cli.main import main
from tests.unit.cli.fake import FakeDecoder, fake_engine
steps = FakeDecoder._steps
def slowly(*args):
    for ids in steps(*args):
        yield ids
        time.sleep(0.2)
FakeDecoder._steps = slowly
chat.open_engine = lambda *_, **__: fake_engine("many words " * 200, "42")
sys.exit(main(["chat"]))
"""


def test_at_a_terminal(tmp_path):
    """Ctrl-C stops an answer; at the empty prompt behind it ends the session."""
    with Terminal(SLOW, KIMI_CACHE_DIR=str(tmp_path)) as terminal:
        terminal.wait_for("> ")
        terminal.type(b"talk\n")
        terminal.wait_for("many words")
        terminal.type(b"\x03")
        terminal.wait_for(chat.STOPPED)
        terminal.wait_for("> ")
        terminal.type(b"6 * 7\n")
        terminal.wait_for("42")
        terminal.wait_for("> ")
        terminal.type(b"\x03")
        assert terminal.ends() == 130
    assert terminal.shown.endswith("interrupted\r\n")
