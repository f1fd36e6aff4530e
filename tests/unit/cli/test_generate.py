"""`generate` around an engine that answers at once: where text comes from, and where it goes."""

import io
import json
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.cli import answers as answers_module
from kimi.cli import generate
from kimi.cli.main import main
from tests import waiting
from tests.unit.cli.fake import fake_engine


@pytest.fixture
def answers(monkeypatch):
    """Puts a fake engine that gives these answers in place of a model."""

    def put(*texts):
        engine = fake_engine(*texts)
        monkeypatch.setattr(generate, "open_engine", lambda *_, **__: engine)
        return engine.model

    return put


def give(monkeypatch, data: bytes, terminal: bool = False) -> None:
    stream = io.TextIOWrapper(io.BytesIO(data), encoding="ascii")
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr("sys.stdin", stream)


def test_text_is_on_stdout_and_all_else_on_stderr(answers, capsys):
    answers("42")
    assert main(["generate", "6 * 7"]) == 0
    shown, told = capsys.readouterr()
    assert shown == "42\n"
    for part in ("tokens/s:", "time to first token:", "compiling, apart:", "ended by: stop"):
        assert part in told


def test_a_prompt_from_standard_input(answers, capsys, monkeypatch):
    """Its last line end is the terminal's or the editor's, as in a shell."""
    for data, raw in [("naïve\n", "naïve"), ("a\r\nb\n\n", "a\nb\n")]:
        model = answers("yes")
        give(monkeypatch, data.encode())
        assert main(["generate", "--raw", "-"]) == 0
        assert model.asked == [raw]
        assert "Ctrl-D" not in capsys.readouterr().err


def test_reading_from_a_terminal_is_told(answers, capsys, monkeypatch):
    answers("yes")
    give(monkeypatch, b"hello\n", terminal=True)
    assert main(["generate", "-"]) == 0
    shown, told = capsys.readouterr()
    assert shown == "yes\n" and told.startswith("reading from the terminal; end with Ctrl-D\n")


@pytest.mark.parametrize("data", [b"", b" \n", b"caf\xe9"])
def test_no_text_on_standard_input(answers, capsys, monkeypatch, data):
    answers()
    give(monkeypatch, data)
    assert main(["generate", "-"]) == 2
    shown, told = capsys.readouterr()
    assert shown == "" and told.startswith("error: ") and told.count("\n") == 1


def test_a_file_of_prompts_is_answered_in_its_order(answers, capsys, tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("one\n\ntwo\n")
    model = answers("1", "2")
    assert main(["generate", "--prompts", str(file)]) == 0
    shown, told = capsys.readouterr()
    assert shown == "--- 1 of 2 ---\n1\n--- 2 of 2 ---\n2\n"
    assert told.count("first after") == 2
    assert "one" in model.asked[0] and "two" in model.asked[1]


def test_a_file_of_prompts_as_json(answers, capsys, tmp_path):
    """An object a line, with the prompt, whether text or ids; ids have no channels."""
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "one"}\n{"ids": [5, 6]}\n')
    answers("1", "2")
    assert main(["generate", "--json", "--prompts", str(file)]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["prompt"] == "one" and first["response"] == "1"
    assert second["prompt"] == [5, 6] and second["text"].startswith("2")
    assert "response" not in second and second["prompt_tokens"] == 2


def test_all_prompts_are_checked_before_the_first_is_answered(answers, capsys, tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "one"}\n{"ids": [5, 9999]}\n')
    answers("1")
    assert main(["generate", "--prompts", str(file)]) == 2
    shown, told = capsys.readouterr()
    assert shown == "" and "found 9999" in told


def test_stop_strings_end_text_and_response(answers, capsys):
    answers("hello END more")
    assert main(["generate", "hi", "--stop", "END", "--stop", "never"]) == 0
    assert capsys.readouterr().out == "hello \n"
    answers("hello END more")
    assert main(["generate", "hi", "--stop", "END", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["response"] == "hello " and report["finish_reason"] == "stop"


def test_several_answers_are_compared(answers, capsys, tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("one\ntwo\n")
    answers("1", "1", "2", "3")
    assert main(["generate", "--compare", "--prompts", str(file)]) == 0
    told = capsys.readouterr().err
    assert "decoding: yes" in told and "decoding: no" in told


@pytest.mark.parametrize(
    "options,message",
    [
        (["--raw", "--thinking", "low"], "--thinking: expected a chat, found --raw"),
        (["--no-draft", "--rows", "4"], "--rows: expected --verify fixed, found --no-draft"),
        (["--no-draft", "--verify", "adaptive"], "--verify adaptive: expected --draft, found"),
        (["--no-draft", "--costs", "c"], "--costs: expected --verify adaptive, found --no-draft"),
        (
            ["--no-draft", "--drafter", "d"],
            "--drafter: expected drafted decoding, found",
        ),
        (["--verify", "off", "--drafter", "d"], "--drafter: expected drafted decoding, found"),
        (["--no-draft", "--compare"], "--compare: expected drafted decoding, found --no-draft"),
        (["--stop", ""], "stop: expected texts that are not empty"),
        (["--top-k", "-1", "--temperature", "1"], "top_k: expected an integer from 0 to"),
        (["--backend", "kernel", "--dtype", "float32"], "dtype: expected the backend 'reference'"),
        (["--ranks", "2"], "ranks: expected the backend 'kernel', found 'reference'"),
        (["--experts", "fp8"], "experts: expected the backend 'kernel', found 'reference'"),
        (["--store", "s"], "store: expected the backend 'kernel', found 'reference'"),
        (["--prompts", "no.txt"], "no.txt: no such file"),
    ],
    ids=" ".join,
)
def test_what_an_option_does_not_do_is_refused(capsys, options, message):
    assert main(["generate", *([] if "--prompts" in options else ["hi"]), *options]) == 2
    shown, told = capsys.readouterr()
    assert shown == "" and message in told and told.count("\n") == 1


@pytest.mark.filterwarnings("default")
def test_sampling_options_without_sampling_are_told(answers, capsys):
    answers("yes")
    assert main(["generate", "hi", "--top-p", "0.9", "--seed", "3"]) == 0
    wanted = "warning: --top-p, --seed: without effect at --temperature 0, which draws nothing\n"
    assert capsys.readouterr().err.startswith(wanted)


def test_that_a_program_is_compiled_is_told_once(capsys, monkeypatch):
    """After some time: one that is read from the cache is not told."""
    line, told = "compiling (once: the programs are kept) ...\n", ""
    with answers_module.compiling_told():
        jax.monitoring.record_scalar(answers_module._COMPILES, 0.0)
        jax.monitoring.record_event_duration_secs(answers_module._COMPILES, 0.0)
    monkeypatch.setattr(answers_module, "_PATIENCE_SECONDS", 0.0)
    with answers_module.compiling_told():
        jax.monitoring.record_scalar(answers_module._COMPILES, 0.0)
        end = time.monotonic() + waiting.limit(10)
        while not told and time.monotonic() < end:
            time.sleep(0.01)
            told += capsys.readouterr().err
        jax.monitoring.record_scalar(answers_module._COMPILES, 0.0)
    assert told + capsys.readouterr().err == line


def test_jax_tells_the_start_and_the_end_of_compiling(monkeypatch):
    seen = []
    timer = SimpleNamespace(start=lambda: seen.append("start"), cancel=lambda: seen.append("end"))
    monkeypatch.setattr(answers_module.threading, "Timer", lambda *_: timer)
    with answers_module.compiling_told():
        jax.jit(lambda x: jnp.tanh(x) + 1)(np.zeros(3))
    assert seen[:2] == ["start", "end"]
