"""The prompt sets behind the published scores. None of them depends on anything but its count."""

import random
from typing import Any

import numpy as np

from kimi.lab.train import dialogue, problems
from kimi.lab.train.corpus import heldout_prose
from kimi.text.chat import Thinking, encode_chat
from kimi.text.tokenizer import Tokenizer

STORY_SEED = 2025
"""Seed of the story requests."""

PROSE_TOKENS = 48
"""Length of a prose prompt; it starts wherever in a document."""

SHIPPED = 1000
"""Prompts that are shipped, for the benchmark."""

_PROSE_MARGIN = 200
_THINKING: tuple[Thinking, Thinking] = ("off", "max")


def problem_prompts(count: int, tokenizer: Tokenizer) -> list[tuple[list[int], int]]:
    """Held-out two-step problems, in turn without and with thinking: (prompt ids, answer)."""
    return [
        (_encode(_problem_row(i, problem), tokenizer), problem.answer)
        for i, problem in enumerate(problems.evaluation_problems(count))
    ]


def story_prompts(count: int, tokenizer: Tokenizer) -> list[list[int]]:
    """Requests for stories, with whatever thinking and system message were drawn."""
    return [_encode(row, tokenizer) for row in _story_rows(count)]


def shipped_rows() -> list[dict[str, Any]]:
    """The rows of `assets.PROMPTS`: these problems and these requests for stories, in turn."""
    found = problems.evaluation_problems(SHIPPED // 2)
    asked = [_problem_row(i, problem) for i, problem in enumerate(found)]
    return [row for both in zip(asked, _story_rows(SHIPPED // 2), strict=True) for row in both]


def _problem_row(i: int, problem: problems.Problem) -> dict[str, Any]:
    messages = [{"role": "user", "content": problem.question}]
    return {"messages": messages, "thinking": _THINKING[i % 2]}


def _story_rows(count: int) -> list[dict[str, Any]]:
    rng = random.Random(STORY_SEED)
    drawn = [dialogue.sample(rng, kind="story") for _ in range(count)]
    return [{"messages": dialogue.prompt_messages(x), "thinking": x.thinking} for x in drawn]


def _encode(row: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    return encode_chat(row["messages"], tokenizer, thinking=row["thinking"])


def prose_prompts(count: int) -> list[list[int]]:
    """Pieces of the shipped held-out prose at equal distances."""
    prose = heldout_prose()
    starts = np.linspace(0, len(prose) - _PROSE_MARGIN, count).astype(int)
    return [prose[start : start + PROSE_TOKENS].tolist() for start in starts]
