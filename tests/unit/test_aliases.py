"""Former names of commands that are the laboratory's now."""

import runpy
import sys

import pytest

from kimi.aliases import ALIASES
from kimi.cli.main import main
from kimi.lab.main import PROGRAM


def call(name: str, *argv: str) -> int:
    """What `python -m NAME ...` does, in this process."""
    module, *command = name.split()
    if command:
        return main([*command, *argv])
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", [module, *argv])
        patch.setattr("kimi.process.begin", lambda: None)  # this process is not the program's
        patch.delitem(sys.modules, module, raising=False)
        runpy.run_module(module, run_name="__main__")
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_runs_the_laboratorys_command(name, monkeypatch):
    called = []
    monkeypatch.setattr("kimi.lab.main.run_commands", lambda *args: called.append(args) or 7)
    assert call(name, "--json") == 7
    assert called == [(PROGRAM, [ALIASES[name], "--json"])]
    assert ALIASES[name] in PROGRAM.commands


@pytest.mark.parametrize("name", ALIASES)
def test_without_the_laboratory_one_line_says_so(name, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "kimi.lab", None)
    assert call(name, "--json") == 2
    out, line = capsys.readouterr()
    assert out == "" and line.count("\n") == 1
    assert line.startswith(f"error: python -m {name}: expected kimi.lab, ")
    assert line.endswith(f"python -m kimi.lab {ALIASES[name]}\n")


@pytest.mark.parametrize("command", PROGRAM.commands)
def test_every_command_has_help(command, capsys):
    from kimi.lab.main import main

    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert PROGRAM.commands[command] in " ".join(capsys.readouterr().out.split())
