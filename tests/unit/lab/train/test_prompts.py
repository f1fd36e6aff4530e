import hashlib
import json

from kimi.text.tokenizer import Tokenizer
from kimi.tiny import prompts


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
