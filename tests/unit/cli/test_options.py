"""Command lines: help texts, and the errors of invalid ones."""

import argparse
import subprocess
import sys

import pytest

from kimi.cli.main import COMMANDS, PROGRAM, SCRIPT, build_parser, main
from kimi.cli.options import Parser, integer, number


@pytest.fixture(scope="module")
def commands() -> dict[str, argparse.ArgumentParser]:
    """Name -> its parser."""
    parser = build_parser(PROGRAM, *COMMANDS)
    action = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def error_of(capsys, *argv: str) -> str:
    """The one line about a command line that cannot be parsed."""
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    captured = capsys.readouterr()
    assert stopped.value.code == 2 and captured.out == "" and captured.err.count("\n") == 1
    return captured.err


def test_every_default_is_in_the_help(commands):
    for name, parser in commands.items():
        text = " ".join(parser.format_help().split())
        for action in parser._actions:
            if action.default in (None, False, argparse.SUPPRESS) or not action.help:
                continue
            shown = f"(default: {action.default})"
            assert shown in text or "default" in action.help, f"{name}: {action.dest}: {shown}"


def test_names_agree_between_commands(commands):
    """What one command calls so, another calls so; `chat` alone has no result to print as JSON."""
    for name, parser in commands.items():
        options = parser._option_string_actions
        assert ("--json" in options) == (name != "chat"), name
        assert "--verbose" in options, name
    for name in ("costs", "doctor"):
        assert {"--drafter", "--draft-model"} < commands[name]._option_string_actions.keys()


@pytest.mark.parametrize(
    "argv,message",
    [
        (
            ["bench-load", "--host-cores", "0"],
            "--host-cores: expected an integer from 1, found '0'",
        ),
        (["preshard", "--memory", "0"], "--memory: expected a number above 0, found '0'"),
        (["aot", "--rows", "1.5"], "--rows: expected an integer, found '1.5'"),
        (["aot", "--rows", ""], "--rows: expected an integer, found ''"),
        (["aot", "--rows", "9" * 5000], "--rows: expected an integer, below 2**63, found '99"),
        (["doctor", "--ranks", "x\ny"], "--ranks: expected an integer, found 'x\\ny'"),
        (["doctor", "--ranks", "3"], "--ranks: invalid choice: 3 (choose from "),
        (["bench-load", "--dir", "/", "--gb", "nan"], "--gb: expected a number above 0, found"),
        (["inspect", "x", "--no-such"], "unrecognized arguments: --no-such"),
        (["logits", "--model", "", "--ids", "1", "--out", "x"], "--model: expected a name, found"),
        (["no-such"], "invalid choice: 'no-such'"),
        ([], "COMMAND: expected one of generate, chat, "),
    ],
)
def test_a_wrong_command_line_is_one_line(capsys, argv, message):
    line = error_of(capsys, *argv)
    assert line.startswith("error: ") and message in line and len(line) < 250


def test_numbers():
    assert [integer()(text) for text in ("-5", "0", "9223372036854775807")] == [-5, 0, 2**63 - 1]
    assert number("1e-3") == 1e-3
    for text in ("1_0", "0x1", "9223372036854775808", "inf"):
        with pytest.raises(argparse.ArgumentTypeError):
            integer()(text)
    for text in ("inf", "0", "-1", "x", "1e308"):
        with pytest.raises(argparse.ArgumentTypeError):
            number(text)


def test_a_default_is_said_once(capsys):
    parser = Parser(prog="x")
    parser.add_argument("--a", default=5, help="of all")
    parser.add_argument("--b", default=6, help="of none (default: six)")
    parser.add_argument("--c", action="store_true", help="whether")
    text = " ".join(parser.format_help().split())
    assert "of all (default: 5)" in text and text.count("default") == 2
    assert parser.parse_args(["-v"]).verbose and not parser.parse_args([]).verbose


def test_it_calls_itself_what_it_was_called(monkeypatch, capsys):
    for argv0, name in [(f"/bin/{SCRIPT}", SCRIPT), ("/x/__main__.py", "python -m kimi")]:
        monkeypatch.setattr(sys, "argv", [argv0])
        assert error_of(capsys, "inspect").endswith(f"(see {name} inspect --help)\n")


def test_completion(capsys, tmp_path):
    assert main(["--completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    ask = f"source {tmp_path}/script; COMP_WORDS=({SCRIPT} preshard --ver); COMP_CWORD=2; " + (
        "$(complete -p kimi-k3 | sed -E 's/.* -F ([^ ]+) .*/\\1/'); echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["--verbose", "--verify"], done.stderr
