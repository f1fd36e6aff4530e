"""`import kimi` as a notebook would use it, with the reference."""

import re
from pathlib import Path

import pytest

import kimi
from kimi.errors import InputError

PROMPT = "Tom has 3 apples and buys 4 more. How many apples does he have now?"


@pytest.fixture(scope="module")
def engine():
    return kimi.load()


def readme_example(name):
    """Runs the one Python block of the README that has `name` in it, as it stands: its globals."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    [code] = [c for c in re.findall(r"```python\n(.*?)```", readme, re.S) if name in c]
    found = {}
    exec(compile(code, "README.md", "exec"), found)
    return found


def test_the_readme_example_runs(capsys):
    readme_example("engine.generate(")
    text, length = capsys.readouterr().out.strip().rsplit("\n", 1)
    assert "7" in text and float(length) > 1


@pytest.mark.slow  # compiles the kernels for the interpreter
def test_the_readme_example_of_a_pure_function_runs(engine, capsys):
    """The first call's tokens are those that the reference begins with."""
    found = readme_example("decode_function")
    ids = found["decode"].tokens(found["done"])
    assert capsys.readouterr().out.strip() == str(ids) and len(ids) > 4
    whole = engine.generate(found["prompt"], 64)
    whole.text()
    assert whole.ids[: len(ids)] == ids


def test_a_generation_streams_and_counts(engine):
    generation = engine.generate(PROMPT, 40)
    pieces = list(generation)
    assert len(pieces) > 1 and "7" in "".join(pieces)
    assert generation.ids[-1] in engine.tokenizer.stop_ids
    assert generation.stats is engine.stats and engine.stats.finish == "stop"
    assert engine.stats.tokens == len(generation.ids)


def test_plain_drafted_and_batched_give_the_same(engine):
    drafted = engine.generate(PROMPT, 40)
    drafted.text()
    plain = engine.generate(PROMPT, 40, verify="off")
    plain.text()
    assert drafted.ids == plain.ids
    ids = engine.encode(PROMPT)
    assert engine.generate_batch([PROMPT, ids], 40) == [plain.ids, plain.ids]
    from_ids = engine.generate(ids, 40)
    assert from_ids.text() and from_ids.ids == plain.ids


def test_what_cannot_be_asked_is_said(engine):
    for options, message in [
        ({"verify": "off", "rows": 2}, "rows: expected verification 'fixed', found 'off'"),
        ({"rows": 9}, "rows: expected a number from 1 to 8"),
        ({"verify": "often"}, "verify: expected 'off', 'fixed' or 'adaptive', found 'often'"),
        ({"temperature": -1.0}, "temperature: expected a number from 0"),
    ]:
        with pytest.raises(InputError, match=re.escape(message)):
            engine.generate(PROMPT, 4, **options)
    with pytest.raises(InputError, match="prompt: expected some text, found none"):
        engine.generate("  ", 4)
    with pytest.raises(InputError, match="decode_function: expected the backend 'kernel', found"):
        engine.decode_function(64)
    with pytest.raises(InputError, match="prompts: expected at least one, found none"):
        engine.generate_batch([], 4)
    with pytest.raises(InputError, match="backend: expected one of reference, kernel"):
        kimi.load(backend="gpu")
    with pytest.raises(InputError, match="experts: expected one of mxfp4, fp8, found 'int4'"):
        kimi.load(backend="kernel", experts="int4")
