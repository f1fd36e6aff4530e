"""Lines about work that takes long."""

import logging
import sys
import time

import pytest

from kimi import progress


@pytest.fixture
def quick(monkeypatch):
    """A second is a moment, and the logger is left as it was."""
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    yield
    progress.log.handlers.clear()
    progress.log.setLevel(logging.NOTSET)
    progress.log.propagate = True


def work(seconds):
    with progress.announced("compiling"):
        time.sleep(seconds)


def test_a_program_sees_nothing_unless_it_asks(quick, capsys, caplog, monkeypatch):
    monkeypatch.delattr(sys, "ps1", raising=False)
    work(0.2)
    assert capsys.readouterr().err == "" and not caplog.records
    with caplog.at_level(logging.INFO, "kimi"):
        work(0.2)
    assert [r.getMessage() for r in caplog.records][0] == "compiling ..."


def test_an_interactive_session_sees_what_takes_long(quick, capsys, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    work(0)
    assert capsys.readouterr().err == ""
    work(0.2)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "kimi: compiling ..." and last.startswith("kimi: compiling: ")
