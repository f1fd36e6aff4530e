"""`import kimi` as a notebook would use it, with the reference."""

import re
from pathlib import Path

import pytest

import kimi
from kimi.errors import InputError
from kimi.text import parse_response

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


def test_a_stop_string_ends_text_ids_and_count(engine):
    """Wherever it stands in a step; the ids end with the token that completes it."""
    whole = engine.generate(PROMPT, 40)
    text = whole.text()
    for stop in (text[20:24], [text[9:11], "never"], text[0], "7"):
        for verify in ("fixed", "off"):
            cut = engine.generate(PROMPT, 40, stop=stop, verify=verify)
            found = cut.text()
            first = stop if isinstance(stop, str) else stop[0]
            assert found == text[: text.index(first)] and cut.finish == "stop"
            assert cut.ids == whole.ids[: len(cut.ids)] and cut.stats.tokens == len(cut.ids)
            shown = [engine.tokenizer.decode(cut.ids[:n]) for n in (len(cut.ids) - 1, None)]
            assert first not in shown[0] and first in shown[1]
    assert engine.generate(PROMPT, 40, stop="never").text() == text


def test_a_system_message_and_top_k_reach_the_decoder(engine):
    plain, led = engine.generate(PROMPT, 4), engine.generate(PROMPT, 4, system="Be brief.")
    assert led.text() and led.stats.prompt_tokens > plain.stats.prompt_tokens
    narrow = engine.generate(PROMPT, 24, temperature=5.0, top_k=1)
    assert narrow.text() and narrow.ids == engine.generate_batch([PROMPT], 24)[0]


MORE = "Mia has 6 boxes with 8 pencils in each. How many pencils are there in all?"


def test_a_chat_continues(engine):
    """Each turn is asked behind the ones before; one that is broken off leaves no trace."""
    chat = engine.chat(512, system="Be brief.")
    first = chat.say(PROMPT, 40)
    next(iter(first))
    assert [m["role"] for m in chat.messages] == ["system"]
    first = chat.say(PROMPT, 40)
    assert "7" in first.text()
    second = chat.say(MORE, 40)
    assert "48" in second.text() and second.stats.prompt_tokens > first.stats.prompt_tokens
    roles = ["system", "user", "assistant", "user", "assistant"]
    assert [m["role"] for m in chat.messages] == roles
    parsed = parse_response(second.ids, engine.tokenizer, start="response")
    assert chat.messages[-1]["content"] == parsed.response
    with pytest.raises(InputError, match="expected at most 512 in all"):
        chat.say(PROMPT, 500)


@pytest.mark.slow  # compiles the kernels for the interpreter
def test_a_chat_with_the_kernel_reads_only_what_is_new(engine):
    """Answers are the reference's; the second turn reads from the end of the first."""
    kernel = kimi.load(backend="kernel")
    expected, chat = engine.chat(256), kernel.chat(256)
    first, truth = chat.say(PROMPT, 40), expected.say(PROMPT, 40)
    assert first.text() == truth.text() and first.ids == truth.ids
    second, truth = chat.say(MORE, 40), expected.say(MORE, 40)
    assert second.text() == truth.text() and chat.messages == expected.messages
    assert first.stats.cached_tokens == 0
    assert second.stats.cached_tokens == first.stats.prompt_tokens + len(first.ids) - 1
