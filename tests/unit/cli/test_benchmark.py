"""`benchmark`, with the small K3: what it reports, marks and refuses."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import kimi
from kimi.benchmark import measure, report
from kimi.benchmark.prompts import built_in, from_file, random_tokens, read_prompts
from kimi.benchmark.system import commit
from kimi.cli import benchmark
from kimi.cli.main import main
from kimi.errors import InputError
from tests.unit.cli.test_bad_input import fails

TWO = ["benchmark", "--requests", "2", "--max-tokens", "24"]
RATES = {
    "steps", "tokens", "step_ms", "tokens_per_step", "steps_per_second", "tokens_per_second",
    "output_tokens",
}  # fmt: skip
OF_RUNS = RATES | {
    "rows_per_step", "step_ms_over_steps", "step_ms_over_requests",
    "tokens_per_step_over_requests", "tokens_per_second_over_requests",
    "time_to_first_token_ms_over_requests",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("benchmark")


@pytest.fixture(scope="module")
def measured(folder):
    """One run of two requests, with everything it writes."""
    out, plot = folder / "r.json", folder / "r.svg"
    assert main([*TWO, "--out", str(out), "--plot", str(plot)]) == 0
    return json.loads(out.read_text())


def test_the_report(measured):
    assert set(measured) == {
        "partial", "system", "model", "options", "plain", "drafted", "speedup",
        "identical_to_plain", "costs", "requests",
    }  # fmt: skip
    assert not measured["partial"] and measured["identical_to_plain"] == 2
    assert set(measured["plain"]) == OF_RUNS
    assert set(measured["drafted"]) == OF_RUNS | {"acceptance_by_position", "shares"}
    assert measured["options"]["rows"] == measured["model"]["block_size"] == 8
    assert [c["rows"] for c in measured["costs"]["verify"]] == [1, 8]
    system = measured["system"]
    assert system["devices"] >= 1 and system["hosts"] == 1 and system["cpu_count"] >= 1
    assert set(system["versions"]) == {"kimi", "jax", "jaxlib", "libtpu", "python"}
    assert system["versions"]["kimi"] == kimi.__version__


def test_the_figures_agree_with_each_other(measured):
    for way in ("plain", "drafted"):
        whole = measured[way]
        records = [whole, *(r[way] for r in measured["requests"])]
        for r in records:
            product = r["tokens_per_step"] * r["steps_per_second"]
            assert r["tokens_per_second"] == pytest.approx(product)
            assert r["step_ms"] == pytest.approx(1000 / r["steps_per_second"])
        for name in ("steps", "tokens", "output_tokens"):
            assert whole[name] == sum(r[name] for r in records[1:])
        for r in records[1:]:
            assert RATES <= set(r)
            assert len(r["times_ms"]) == len(r["rows"]) == len(r["accepted"]) == r["steps"]
            assert r["time_to_first_token_ms"] > 0 and r["finish"] in ("stop", "length")
    assert measured["plain"]["tokens_per_step"] == 1
    assert measured["drafted"]["tokens_per_step"] > 2
    shares = measured["drafted"]["shares"]
    assert shares["draft_share"] + shares["verify_share"] == pytest.approx(1)


def test_the_table(measured):
    text = report.lines(measured)
    assert not any("ynthetic" in line or "PARTIAL" in line for line in text)
    joined = "\n".join(text)
    for part in ("step time, ms: mean", "tokens per second (tokens per step x", "time to first"):
        assert part in joined
    assert "outputs identical to plain decoding: 2 of 2" in joined


def test_a_synthetic_report_says_so_everywhere(measured):
    options = measured["options"] | {"forced_acceptance": 3.5}
    marked = report.mark(measured | {"options": options})
    assert all(line.startswith("[synthetic]") for line in report.lines(marked))
    assert any("FORCED to 3.5" in line for line in report.lines(marked))

    assert marked["system"]["versions"] == measured["system"]["versions"]  # no record: names

    def check(value):
        if isinstance(value, dict):
            assert value["synthetic"] is True
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in items:
            if isinstance(child, dict | list) and key != "versions":
                check(child)

    check(marked)


def test_the_plot(measured, folder):
    text = (folder / "r.svg").read_text()
    assert text.startswith("<?xml") and text.rstrip().endswith("</svg>")
    assert "drafted decoding at" in text and "small K3" in text  # comments name what is drawn


def test_times_that_were_measured_apart_may_exceed_a_step(measured):
    def line(rest):
        shares = measured["drafted"]["shares"] | {"rest_ms": rest}
        return report.lines(measured | {"drafted": measured["drafted"] | {"shares": shares}})[-4]

    assert line(2.5).endswith("; a step takes 2.50 ms more than the two (sampling, the host)")
    assert "; the two come to 13.00 ms more than a step takes" in line(-13.0)


@pytest.fixture(scope="module")
def engine():
    return kimi.load()


@pytest.fixture
def loaded(monkeypatch, engine):
    """The command without the seconds of loading: all tests share one model."""
    monkeypatch.setattr(benchmark, "open_engine", lambda *_: engine)


def test_adaptive_and_random_tokens_as_json(capsys, loaded):
    options = ["--random-tokens", "9", "--verify", "adaptive", "--context", "40", "--json"]
    assert main([*TWO, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [c["rows"] for c in found["costs"]["verify"]] == [1, 2, 4, 8]
    assert {r["prompt_tokens"] for r in found["requests"]} == {9}
    assert found["plain"]["output_tokens"] == found["drafted"]["output_tokens"] == 48
    assert found["options"]["rows"] is None and found["options"]["verify"] == "adaptive"
    rows = {r for request in found["requests"] for r in request["drafted"]["rows"]}
    assert rows <= {1, 2, 4, 8}


def interrupt_at(monkeypatch, call):
    """Ctrl-C at the call'th decoding (plain and drafted count as two)."""
    decode, calls = measure.decode, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return decode(*args)

    monkeypatch.setattr(measure, "decode", interrupted)


def test_interrupted_between_requests(capsys, monkeypatch, tmp_path, loaded):
    interrupt_at(monkeypatch, 4)
    out = tmp_path / "r.json"
    assert main([*TWO, "--out", str(out)]) == 130
    captured = capsys.readouterr()
    assert captured.err == "interrupted\n"
    assert "PARTIAL" in captured.out and "1 of 2: built-in" in captured.out
    found = json.loads(out.read_text())
    assert found["partial"] is True and len(found["requests"]) == 1
    assert found["plain"]["steps"] == found["requests"][0]["plain"]["steps"]


def test_interrupted_before_anything_has_ended(capsys, monkeypatch, tmp_path, loaded):
    interrupt_at(monkeypatch, 2)
    out = tmp_path / "r.json"
    assert main([*TWO, "--out", str(out)]) == 130
    assert capsys.readouterr().out == "" and not out.exists()


@pytest.mark.parametrize(
    "options,message",
    [
        (["--requests", "0"], "--requests: expected at least 1, found 0"),
        (["--output-length", "0"], "--max-tokens: expected at least 1, found 0"),
        (["--steps-per-call", "0"], "--steps-per-call: expected at least 1, found 0"),
        (["--rows", "2", "--verify", "adaptive"], "--rows: expected --verify fixed, found"),
        (["--rows", "9"], "rows: expected a number from 1 to 8 (block_size), found 9"),
        (["--random-tokens", "0"], "--random-tokens: expected at least 1, found 0"),
        (["--random-tokens", "9", "--context", "20"], "--context: expected at least 137"),
        (["--random-tokens", "5000"], "expected at most 4096 together (the model's context"),
        (["--forced-acceptance", "0.5"], "--forced-acceptance: expected a number from 1, found"),
        (["--forced-acceptance", "nan"], "--forced-acceptance: expected a number from 1, found"),
        (["--forced-acceptance", "9"], "--forced-acceptance: expected at most 8 (rows verified)"),
        (["--plot", "x.pdf"], "--plot: expected a name ending in .png or .svg, found x.pdf"),
        (["--out", "/no/such/x.json"], "there is no folder"),
        (["--prompts", "/no/such.txt"], "--prompts: /no/such.txt: no such file"),
    ],
)
def test_bad_options(capsys, options, message):
    assert message in fails(capsys, "benchmark", *options)


def test_forced_acceptance_over_several_steps_a_call(capsys, loaded):
    check_forced(capsys)


def test_the_reference_is_refused_on_several_hosts(capsys, monkeypatch, loaded):
    monkeypatch.setattr("jax.process_count", lambda: 4)
    line = fails(capsys, "benchmark")
    assert line == "error: --backend: expected the kernel on 4 hosts, found the reference"


def test_without_matplotlib(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = fails(capsys, "benchmark", "--plot", "x.png")
    assert line.startswith("error: --plot: expected matplotlib, found it not installed: bash scr")
    assert "scripts/setup.sh eval" in line and "pip install -e '.[eval]'" in line


def test_prompts_of_a_text_file(engine, tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("Tom has 3 apples.\n\nA story, please.\nMore.\n")
    assert from_file(engine, file, 2).ids == [
        engine.encode("Tom has 3 apples."), engine.encode("A story, please.")
    ]  # fmt: skip
    assert len(from_file(engine, file, None).ids) == 3
    with pytest.raises(InputError, match="expected at least 4 prompts, found 3"):
        from_file(engine, file, 4)


def test_prompts_of_a_jsonl_file(engine, tmp_path):
    file = tmp_path / "p.jsonl"
    said = {"role": "user", "content": "Hello"}
    lines = [{"prompt": "Hello"}, {"ids": [3, 4]}, {"messages": [said]}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    hello = engine.encode("Hello")
    assert from_file(engine, file, None).ids == [hello, [3, 4], hello]


@pytest.mark.parametrize(
    "line,message",
    [
        ("{", "p.jsonl:2: expected JSON"),
        ('"Hello"', 'p.jsonl:2: expected an object with "prompt", "messages" or "ids"'),
        ('{"prompt": "a", "ids": [1]}', 'expected an object with "prompt", "messages" or "ids"'),
        ('{"prompt": " "}', "p.jsonl:2: prompt: expected some text"),
        ('{"ids": []}', "p.jsonl:2: ids: expected a list of integers"),
        ('{"ids": [true]}', "p.jsonl:2: ids: expected a list of integers"),
        ('{"ids": [1.0]}', "p.jsonl:2: ids: expected a list of integers"),
        ('{"ids": [-1]}', "p.jsonl: prompt 2: token 0: expected an id from 0 to 2047, found -1"),
        ('{"ids": [%s]}' % ("9" * 4000), "p.jsonl: prompt 2: token 0: expected an id from 0 to"),
        ('{"ids": [%s]}' % ("9" * 5000), "p.jsonl:2: expected JSON: Exceeds the limit"),
        ('{"prompt": [1, 2]}', 'p.jsonl:2: prompt: expected some text (token ids as "ids"), found'),
        ('{"prompt": null}', "p.jsonl:2: prompt: expected some text"),
        ('{"messages": []}', "p.jsonl:2: messages: expected a list of objects, found []"),
        ('{"messages": [{"role": "x"}]}', "p.jsonl: prompt 2: messages[0].role: expected"),
        ('{"prompt": "a", "prompt": "b"}', "p.jsonl:2: expected JSON: 'prompt' occurs twice"),
        ('{"prompt": "a", "weight": NaN}', "p.jsonl:2: expected JSON: weight: expected a finite"),
        ("[" * 9999 + "]" * 9999, "p.jsonl:2: expected JSON: nested too deeply"),
        ('{"prompt": "a"} {"prompt": "b"}', "p.jsonl:2: expected JSON: Extra data"),
    ],
)
def test_bad_lines(engine, tmp_path, line, message):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "Hello"}\n' + line + "\n")
    with pytest.raises(InputError) as caught:
        from_file(engine, file, None)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "--prompts: .*p.txt: expected at least 1 prompts, found 0"),
        (b"\xef\xbb\xbf\r\n \n", "--prompts: .*p.txt: expected at least 1 prompts, found 0"),
        (b"one\n\xff", "--prompts: .*p.txt: line 2: expected UTF-8, found 0xff"),
        (None, "--prompts: .*p.txt: no such file"),
    ],
)
def test_bad_files_of_prompts(tmp_path, data, message):
    file = tmp_path / "p.txt"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_prompts(file)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_lines_end_at_line_feeds(tmp_path, separator):
    text = f"one{separator}two"
    lines = tmp_path / "p.txt"
    lines.write_bytes(b"\xef\xbb\xbf" + f"{text}\r\n\n{text}".encode())
    assert read_prompts(str(lines)) == [text, text]
    objects = tmp_path / "p.JsonL"
    written = json.dumps({"prompt": text, "id": 7}, ensure_ascii=separator < " ")
    objects.write_bytes(b"\xef\xbb\xbf" + f"{written}\r\n{written}\n".encode())
    assert read_prompts(objects, 2) == [text, text]


@pytest.mark.parametrize("count", [0, -1, 2.0, True, "2"])
def test_counts_are_checked_in_python_too(engine, tmp_path, count):
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    for make in (
        lambda: read_prompts(tmp_path / "p.txt", count),
        lambda: built_in(engine, count),
        lambda: random_tokens(engine, 4, count),
        lambda: random_tokens(engine, count, 4),
        lambda: engine.decoder(count),
        lambda: replace(engine, steps_per_call=count).decoder(64),
    ):
        with pytest.raises(InputError, match="expected"):
            make()


def test_an_id_outside_the_vocabulary(capsys, tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"ids": [1, 99999]}\n')
    line = fails(capsys, "benchmark", "--prompts", str(file))
    assert "p.jsonl: prompt 1: token 1: expected an id from 0 to 2047, found 99999" in line


def test_generated_prompts(engine):
    assert [len(built_in(engine, n).ids) for n in (1, 2, 5)] == [1, 2, 5]
    assert built_in(engine, 5).ids[:2] == built_in(engine, 2).ids
    drawn = random_tokens(engine, 7, 3)
    assert not drawn.text and [len(i) for i in drawn.ids] == [7, 7, 7]
    assert drawn == random_tokens(engine, 7, 3)


def test_the_commit(tmp_path):
    assert commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    (tmp_path / "a").write_text("1")
    for command in (["init", "-q"], ["add", "a"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    clean = commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "a").write_text("2")
    assert commit(tmp_path) == f"{clean} with changes"


def test_the_script_is_bash():
    script = Path(kimi.__file__).parents[1] / "scripts" / "benchmark_dspark.sh"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


@pytest.mark.slow
def test_forced_acceptance_of_the_interpreted_kernel(capsys):
    check_forced(capsys, "--backend", "kernel")


def check_forced(capsys, *backend):
    """As many tokens a step as are asked for, counted over calls; every record says so."""
    options = [*backend, "--forced-acceptance", "2.5", "--random-tokens", "4"]
    argv = ["benchmark", "--requests", "1", "--output-length", "15", *options, "--json"]
    assert main([*argv, "--steps-per-call", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["options"]["steps_per_call"] == 2
    assert found["synthetic"] is found["requests"][0]["drafted"]["synthetic"] is True
    drafted = found["requests"][0]["drafted"]
    assert drafted["accepted"] == [1, 2, 1, 2, 1, 2] and drafted["tokens_per_step"] == 2.5
    assert found["requests"][0]["plain"]["steps"] == 15
    assert found["costs"]["draft_ms"] > 0
    assert [c["rows"] for c in found["costs"]["verify"]] == [1, 8]
