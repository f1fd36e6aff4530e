"""The prompt sets behind the published scores. None of them depends on anything but its count."""

import random

import numpy as np

from kimi.text.chat import Thinking, encode_chat
from kimi.text.tokenizer import Tokenizer
from kimi.tiny import dialogue, problems
from kimi.tiny.corpus import heldout_prose

STORY_SEED = 2025
"""Seed of the story requests."""

PROSE_TOKENS = 48
"""Length of a prose prompt; it starts wherever in a document."""

_PROSE_MARGIN = 200
_THINKING: tuple[Thinking, Thinking] = ("off", "max")


def problem_prompts(count: int, tokenizer: Tokenizer) -> list[tuple[list[int], int]]:
    """Held-out two-step problems, in turn without and with thinking: (prompt ids, answer)."""
    return [
        (
            encode_chat(
                [{"role": "user", "content": problem.question}],
                tokenizer,
                thinking=_THINKING[i % 2],
            ),
            problem.answer,
        )
        for i, problem in enumerate(problems.evaluation_problems(count))
    ]


def story_prompts(count: int, tokenizer: Tokenizer) -> list[list[int]]:
    """Requests for stories, with whatever thinking and system message were drawn."""
    rng = random.Random(STORY_SEED)
    return [
        dialogue.encode_prompt(dialogue.sample(rng, kind="story"), tokenizer) for _ in range(count)
    ]


def prose_prompts(count: int) -> list[list[int]]:
    """Pieces of the shipped held-out prose at equal distances."""
    prose = heldout_prose()
    starts = np.linspace(0, len(prose) - _PROSE_MARGIN, count).astype(int)
    return [prose[start : start + PROSE_TOKENS].tolist() for start in starts]
