import hashlib
import json
from types import SimpleNamespace

import pytest

from kimi.api import Engine
from kimi.benchmark.prompts import built_in
from kimi.errors import InputError
from kimi.lab.train import prompts
from kimi.text.tokenizer import Tokenizer


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def test_problem_prompts_are_frozen(tokenizer: Tokenizer):
    assert digest(prompts.problem_prompts(200, tokenizer)) == "772aae5440b4700f"


def test_thinking_alternates(tokenizer: Tokenizer):
    (off, _), (thinking, _) = prompts.problem_prompts(2, tokenizer)
    assert tokenizer.decode(off).endswith("<|open|>response<|sep|>")
    assert tokenizer.decode(thinking).endswith("<|open|>think<|sep|>")
    assert "`thinking_effort=max`" in tokenizer.decode(thinking)


def test_story_prompts_are_frozen(tokenizer: Tokenizer):
    assert digest(prompts.story_prompts(40, tokenizer)) == "8b3aaaf6b5514f71"


def test_prose_prompts_are_frozen(tokenizer: Tokenizer):
    drawn = prompts.prose_prompts(40)
    assert digest(drawn) == "94d18ac308578db0"
    assert tokenizer.decode(drawn[0]).startswith('"Her mother is a very good sort of woman,"')


def test_the_shipped_prompts_are_these_in_turn(tokenizer: Tokenizer):
    """What the benchmark reads."""
    config = SimpleNamespace(vocab_size=tokenizer.vocab_size)
    engine = Engine(SimpleNamespace(tokenizer=tokenizer, config=config), "reference")
    found = built_in(engine, 401).ids
    problems = [ids for ids, _ in prompts.problem_prompts(201, tokenizer)]
    assert found[::2] == problems and found[1::2] == prompts.story_prompts(200, tokenizer)
    with pytest.raises(InputError, match="--requests: expected at most 1000, .*, found 1001"):
        built_in(engine, 1001)
