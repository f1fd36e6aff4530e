"""`import kimi` as a notebook would use it, with the reference."""

import re
from pathlib import Path

import numpy as np
import pytest

import kimi
from kimi.answer import Answer
from kimi.assets import TINY_K3
from kimi.decoding.stats import Stats
from kimi.errors import InputError
from kimi.text import Tokenizer, encode_chat, parse_response

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
    whole = engine.generate(found["prompt"], 64).run()
    assert whole.ids[: len(ids)] == ids


def test_a_generation_streams_and_counts(engine):
    answer = engine.generate(PROMPT, 40)
    pieces = list(answer)
    assert len(pieces) > 1 and "7" in "".join(pieces)
    assert answer.ids[-1] in engine.tokenizer.stop_ids
    assert answer.stats is engine.stats and engine.stats.finish == "stop"
    assert engine.stats.tokens == len(answer.ids)


def test_an_answer_knows_its_parts(engine):
    """Text, reasoning, message, and why it ended."""
    answer = engine.generate(PROMPT, 128, thinking="max")
    assert answer.finish_reason is None and answer.ids == []
    parsed = parse_response(answer.run().ids, engine.tokenizer)
    assert answer.text == parsed.response and answer.reasoning == parsed.think != ""
    assert answer.finish_reason == "stop" and answer.tool_calls == []
    message = {"role": "assistant", "content": answer.text, "reasoning_content": answer.reasoning}
    assert answer.message == message
    short = engine.generate(PROMPT, 2).run()
    assert short.finish_reason == "length" and len(short.ids) == 2
    plain = engine.generate("It was a fine day", 8, chat=False)
    assert plain.text and plain.reasoning == "" and plain.text == engine.tokenizer.decode(plain.ids)


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def test_messages_and_tools_are_prompts(engine):
    """Wherever a prompt is taken; the ids are those of the chat format."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": PROMPT},
    ]
    ids = encode_chat(messages, engine.tokenizer, thinking="low", tools=TOOLS)
    assert engine.encode(messages, thinking="low", tools=TOOLS) == ids
    assert engine.encode(PROMPT, system="Be brief.", thinking="low", tools=TOOLS) == ids
    assert engine.encode(messages[1:], system="Be brief.", thinking="low", tools=TOOLS) == ids
    answers = [
        engine.generate(messages, 8),
        engine.generate(PROMPT, 8, system="Be brief."),
        *engine.generate_batch([messages, PROMPT], 8, system=None)[:1],
    ]
    assert len({tuple(answer.run().ids) for answer in answers}) == 1
    chat = engine.chat(512)
    said = chat.say(messages, 8)
    assert said.run().ids == answers[0].ids and chat.messages == [*messages, said.message]


def test_calls_of_tools_are_read():
    """An answer that ends with calls says so; its message continues the conversation."""
    tokenizer = Tokenizer.from_dir(TINY_K3)
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    history = [
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "content": "Adding.", "tool_calls": [call]},
    ]
    ask = encode_chat(history[:1], tokenizer, thinking="off")
    both = encode_chat([*history, history[0]], tokenizer, thinking="off")
    written = both[len(ask) : both.index(tokenizer.special.end_of_msg, len(ask)) + 1]
    stats = Stats(finish="stop")
    answer = Answer(iter([written]), tokenizer, "response", stats).run()
    assert answer.text == "Adding." and answer.tool_calls == [call]
    assert answer.message == history[1] and answer.finish_reason == "tool_calls"


def test_plain_drafted_and_batched_give_the_same(engine):
    drafted = engine.generate(PROMPT, 40).run()
    plain = engine.generate(PROMPT, 40, verify="off").run()
    assert drafted.ids == plain.ids
    ids = engine.encode(PROMPT)
    batch = engine.generate_batch([PROMPT, ids], 40)
    assert [answer.ids for answer in batch] == [plain.ids, plain.ids]
    assert batch[0].text == plain.text and batch[1].finish_reason == plain.finish_reason
    assert engine.generate(ids, 40).run().ids == plain.ids
    for verify in (kimi.Fixed(3), kimi.Adaptive(kimi.CostTable(0.2, {1: 1.0, 8: 2.0}))):
        assert engine.generate(PROMPT, 40, verify=verify).run().ids == plain.ids


def test_what_cannot_be_asked_is_said(engine):
    for options, message in [
        ({"verify": kimi.Fixed(9)}, "rows: expected a number from 1 to 8 (block_size), found 9"),
        (
            {"verify": "often"},
            "verify: expected 'off', 'fixed', 'adaptive', a Fixed or an Adaptive, found 'often'",
        ),
        ({"verify": 4}, "verify: expected 'off', 'fixed', 'adaptive', a Fixed or an Adaptive"),
        ({"sampling": 1.0}, "sampling: expected a Sampling, found 1.0"),
        (
            {"sampling": kimi.Sampling(1.0), "top_p": 0.9},
            "top_p: expected it within sampling, found both",
        ),
        ({"context": 8}, "context: expected at least"),
        ({"context": "8"}, "context: expected an integer, found '8'"),
        ({"tools": [], "chat": False}, "tools: expected a chat, found plain text"),
        ({"temperature": -1.0}, "temperature: expected a number from 0"),
        ({"temperature": None}, "temperature: expected a number, found None"),
        ({"seed": 1.5}, "seed: expected an integer, found 1.5"),
        ({"max_tokens": None}, "max tokens: expected an integer, found None"),
        ({"max_tokens": 0}, "max tokens: expected at least 1, found 0"),
        ({"max_tokens": 5000}, "expected at most 4096 together (the model's context"),
        ({"chat": "no"}, "chat: expected True or False, found 'no'"),
        ({"thinking": None}, "thinking: expected one of off, low, high, max, found None"),
        ({"chat": False, "thinking": "low"}, "thinking: expected a chat, found plain text"),
        ({"chat": False, "system": "Be brief."}, "system: expected a chat, found plain text"),
        ({"prompt": [1], "system": "Be brief."}, "system: expected a chat, found token ids"),
        ({"system": 1}, "system: expected a text, found 1"),
        ({"stop": ["."] + [""]}, "stop: expected texts that are not empty, found ''"),
        ({"stop": 1}, "stop: expected a text or a list of texts, found 1"),
    ]:
        with pytest.raises(InputError, match=re.escape(message)):
            engine.generate(**{"prompt": PROMPT, "max_tokens": 4, **options})
    for prompts, message in [
        ([], "prompts: expected at least one, found none"),
        (PROMPT, "prompts: expected a list of prompts, found 'Tom has"),
        ([1, 2], "prompt: expected a text, messages or token ids, found 1"),
        ([[1]] * 9, "prompts: expected 1 to 8, found 9"),
    ]:
        with pytest.raises(InputError, match=re.escape(message)):
            engine.generate_batch(prompts, 4)
    with pytest.raises(InputError, match="seed: expected an integer from 0 to 2147483647"):
        engine.generate_batch([[1], [2]], 4, seed=2**31 - 1)
    with pytest.raises(InputError, match="decode_function: expected a drafter and verification"):
        engine.decode_function(64, verify="off")
    for tokens, found in [(0, "at least 1, found 0"), ("64", "an integer, found '64'")]:
        with pytest.raises(InputError, match=f"tokens: expected {found}"):
            engine.chat(tokens)


@pytest.mark.parametrize(
    "prompt,message",
    [
        (None, "expected a text, messages or token ids, found None"),
        (b"Hello", "expected a text, messages or token ids, found b'Hello'"),
        (
            {"role": "user", "content": PROMPT},
            "expected a list of messages, found one: put it in a list",
        ),
        (["12", "13"], "token 0: expected an integer, found '12'"),
        ([1, 2.0], "token 1: expected an integer, found 2.0"),
        ([True], "token 0: expected an integer, found True"),
        (np.ones(2), "token 0: expected an integer, found 1.0"),
        (np.ones((1, 2), int), "token 0: expected an integer, found [1, 1]"),
        ([3, 2048], "token 1: expected an id from 0 to 2047, found 2048"),
        ([-1], "token 0: expected an id from 0 to 2047, found -1"),
        ({3, 4}, "expected token ids, found {3, 4}"),
        ([], "expected at least one token, found none"),
        ("  ", "expected some text, found none"),
    ],
)
def test_what_is_no_prompt_is_said_on_one_line(engine, prompt, message):
    with pytest.raises(InputError, match=re.escape(message)) as found:
        engine.generate(prompt, 4)
    assert str(found.value).startswith("prompt: ") and "\n" not in str(found.value)


def test_ids_of_array_libraries_are_ids(engine):
    assert engine.encode(np.array([3, 4], np.uint16)) == [3, 4] == engine.encode(range(3, 5))
    assert type(engine.encode((np.int64(3),))[0]) is int


def test_logits_are_asked_for_ids_of_the_vocabulary(engine):
    for ids, message in [
        ([], "ids: expected at least one token id, found none"),
        ([-1], "ids: token 0: expected an id from 0 to 2047, found -1"),
        ("12", "ids: expected token ids, found '12'"),
        ([1] * 4097, "expected at most 4096 together"),
    ]:
        with pytest.raises(InputError, match=message):
            engine.logits(ids)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"backend": "gpu"}, "backend: expected one of reference, kernel"),
        ({"backend": ["kernel"]}, "backend: expected one of reference, kernel, found ['kernel']"),
        ({"backend": "kernel", "experts": "int4"}, "experts: expected one of mxfp4, fp8"),
        ({"dtype": np.float32}, "dtype: expected one of float32, bfloat16, found <class"),
        ({"model": None}, "model: expected a path or a hub id, found None"),
        ({"model": ""}, "model: expected a path or a hub id, found ''"),
        ({"drafter": 3}, "drafter: expected a path or a hub id, found 3"),
        ({"draft": "no"}, "draft: expected True or False, found 'no'"),
        ({"drafter": "x", "draft": False}, "drafter: expected draft=True, found False"),
        ({"backend": "kernel", "ranks": 1.0}, "ranks: expected an integer, found 1.0"),
        ({"backend": "kernel", "store": b"x"}, "store: expected a path or a hub id, found b'x'"),
        ({"store": "x"}, "store: expected the backend 'kernel', found 'reference'"),
        ({"ranks": 2}, "ranks: expected the backend 'kernel', found 'reference'"),
        ({"experts": "fp8"}, "experts: expected the backend 'kernel', found 'reference'"),
        ({"backend": "kernel", "dtype": "float32"}, "dtype: expected the backend 'reference', f"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_said(options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        kimi.load(**options)


def test_what_a_notebook_shows(engine):
    """Names before anything is imported, and objects on one short line."""
    assert {"load", "Engine", "Chat", "Answer", "Sampling", "Fixed", "api"} <= set(dir(kimi))
    assert (
        repr(engine) == f"Engine({str(TINY_K3)!r}, backend='reference', block_size=8, context=4096)"
    )
    answer = engine.generate(PROMPT, 24).run()
    for shown in (engine.model, answer, answer.stats, engine.chat(256)):
        assert len(repr(shown)) < 500


def test_a_stop_string_ends_text_ids_and_count(engine):
    """Wherever it stands in a step; the ids end with the token that completes it."""
    whole = engine.generate(PROMPT, 40)
    text = "".join(whole)
    for stop in (text[20:24], [text[9:11], "never"], text[0], "7"):
        for verify in ("fixed", "off"):
            cut = engine.generate(PROMPT, 40, stop=stop, verify=verify)
            found = "".join(cut)
            first = stop if isinstance(stop, str) else stop[0]
            assert found == cut.text == text[: text.index(first)] and cut.finish_reason == "stop"
            assert cut.ids == whole.ids[: len(cut.ids)] and cut.stats.tokens == len(cut.ids)
            shown = [engine.tokenizer.decode(cut.ids[:n]) for n in (len(cut.ids) - 1, None)]
            assert first not in shown[0] and first in shown[1]
        [cut] = engine.generate_batch([PROMPT], 40, stop=stop)
        assert cut.text == text[: text.index(first)] and cut.finish_reason == "stop"
    assert engine.generate(PROMPT, 40, stop="never").text == text


def test_a_system_message_and_top_k_reach_the_decoder(engine):
    plain, led = engine.generate(PROMPT, 4), engine.generate(PROMPT, 4, system="Be brief.")
    assert led.text and led.stats.prompt_tokens > plain.stats.prompt_tokens
    narrow = engine.generate(PROMPT, 24, temperature=5.0, top_k=1).run()
    same = engine.generate(PROMPT, 24, sampling=kimi.Sampling(5.0, top_k=1)).run()
    assert narrow.ids == same.ids == engine.generate_batch([PROMPT], 24)[0].ids


MORE = "Mia has 6 boxes with 8 pencils in each. How many pencils are there in all?"


def test_a_chat_continues(engine):
    """Each turn is asked behind the ones before; one that is broken off leaves no trace."""
    chat = engine.chat(512, system="Be brief.")
    first = chat.say(PROMPT, 40)
    next(iter(first))
    assert [m["role"] for m in chat.messages] == ["system"]
    first = chat.say(PROMPT, 40)
    assert "7" in first.text
    second = chat.say(MORE, 40)
    assert "48" in second.text and second.stats.prompt_tokens > first.stats.prompt_tokens
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
    assert first.text == truth.text and first.ids == truth.ids
    second, truth = chat.say(MORE, 40), expected.say(MORE, 40)
    assert second.text == truth.text and chat.messages == expected.messages
    assert first.stats.cached_tokens == 0
    assert second.stats.cached_tokens == first.stats.prompt_tokens + len(first.ids) - 1
