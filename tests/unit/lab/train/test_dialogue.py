import hashlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.lab.train import dialogue
from kimi.text import parse_response
from kimi.text.tokenizer import Tokenizer


def test_ids_are_frozen(tokenizer: Tokenizer):
    rng = random.Random(7)
    sampled = [dialogue.sample(rng) for _ in range(200)]
    ids = [
        [dialogue.encode_prompt(x, tokenizer), dialogue.encode_reply(x, tokenizer)] for x in sampled
    ]
    digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
    assert digest == "bb7b9ed94146ad30df3322bba1120de55695c948a466daac0bd0d1b648ac7d16"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(["problem", "story", "talk", None]))
def test_reply_parses_to_what_was_sampled(
    tokenizer: Tokenizer, seed: int, kind: dialogue.Kind | None
):
    exchange = dialogue.sample(random.Random(seed), kind=kind)
    prompt = tokenizer.decode(dialogue.encode_prompt(exchange, tokenizer))
    reply = dialogue.encode_reply(exchange, tokenizer)
    channel = "response" if exchange.thinking == "off" else "think"
    assert prompt.endswith(f"<|open|>{channel}<|sep|>")
    assert exchange.user in prompt
    assert (exchange.system or "") in prompt
    assert reply[-1] == tokenizer.special.end_of_msg
    parsed = parse_response(reply, tokenizer, start=channel)
    assert parsed.response == exchange.response
    assert (parsed.think or "") == ("" if exchange.thinking == "off" else exchange.reasoning)


@pytest.mark.parametrize(("thinking", "steps_in_response"), [("off", True), ("max", False)])
def test_problem_shows_its_steps_once(thinking: dialogue.Thinking, steps_in_response: bool):
    rng = random.Random(0)
    drawn = (dialogue.sample(rng, kind="problem") for _ in range(100))
    exchange = next(x for x in drawn if x.thinking == thinking)
    assert exchange.response.startswith(exchange.reasoning) == steps_in_response
    assert "The answer is " in exchange.response.splitlines()[-1]


def test_all_thinking_levels_and_kinds_occur():
    rng = random.Random(1)
    sampled = [dialogue.sample(rng) for _ in range(400)]
    assert {x.thinking for x in sampled} == {"off", "low", "high", "max"}
    assert any(x.system for x in sampled) and any(x.system is None for x in sampled)
    assert any(x.reasoning == "A short reply." for x in sampled)
    assert any(x.reasoning.startswith("A story about") for x in sampled)
