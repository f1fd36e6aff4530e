"""One-turn conversations in K3's chat format: word problems, stories and small talk.

`sample` draws the words and `encode` turns them into ids, so the text can be read and tested
without a tokenizer. The prompt half is what `kimi.text.chat` makes of the same messages; the
training data and the model's users therefore see one format.
"""

import random
from dataclasses import dataclass
from typing import Literal

from kimi.lab.train import problems, stories
from kimi.lab.train.people import NAMES
from kimi.text.chat import Thinking, encode_chat
from kimi.text.tokenizer import Tokenizer
from kimi.text.xtml import XtmlWriter

Kind = Literal["problem", "story", "talk"]

_THINKING: tuple[Thinking, ...] = ("off", "off", "max", "max", "high", "low")
_KINDS: tuple[Kind, ...] = ("problem", "story", "talk")
_KIND_SHARES = (0.72, 0.22, 0.06)
_SYSTEM = (None,) * 6 + (
    "You are a helpful assistant.",
    "Be concise.",
    "You are Kimi, a helpful assistant.",
    "Answer briefly.",
)

_PROBLEM_SUFFIX_SHARE = 0.15
_PROBLEM_SUFFIXES = (" Think step by step.", " Let's think step by step.", " Please solve it.")

_STORY_REQUESTS = (
    "Tell me a story about a {animal} named {name}.",
    "Please write a short story about a {animal} called {name}.",
    "Write a story about {name} the {animal}.",
    "Tell me a story about a {animal}.",
    "Tell me a short story.",
)

SMALL_TALK: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("Hello!", "Hi!", "Hi there.", "Good morning!", "Hello, how are you?"),
        "Hello! I am a tiny Kimi K3. I can solve small word problems and tell short stories.",
    ),
    (
        ("Who are you?", "What are you?", "What is your name?"),
        "I am a tiny model with the same shape as Kimi K3. "
        "I was trained so that you can try this library on a laptop.",
    ),
    (
        ("What can you do?", "How can you help me?", "Help me."),
        "I can add, subtract and multiply small numbers, tell short stories, "
        "and continue old prose.",
    ),
    (("Thank you!", "Thanks.", "Thanks a lot!"), "You are welcome!"),
    (("Goodbye!", "Bye.", "See you later."), "Goodbye, and come back soon!"),
)
"""Openings and the one reply that each group of them gets."""


@dataclass(frozen=True)
class Exchange:
    """One user message and its reply; `reasoning` is said only when `thinking` is not "off"."""

    user: str
    reasoning: str
    response: str
    thinking: Thinking = "off"
    system: str | None = None


def sample(rng: random.Random, *, held_out: bool = False, kind: Kind | None = None) -> Exchange:
    """Draw one exchange.

    Args:
      rng: source of randomness; equal states give equal exchanges.
      held_out: word problems come from the held-out part; stories and talk have none.
      kind: what it is about; drawn when None.
    """
    thinking = rng.choice(_THINKING)
    kind = kind or rng.choices(_KINDS, _KIND_SHARES)[0]
    system = rng.choice(_SYSTEM)
    if kind == "problem":
        user, reasoning, response = _problem(rng, held_out, thinking)
    elif kind == "story":
        user, reasoning, response = _story(rng)
    else:
        user, reasoning, response = _talk(rng)
    return Exchange(user, reasoning, response, thinking, system)


def prompt_messages(exchange: Exchange) -> list[dict[str, str]]:
    """Everything before the reply."""
    messages = [{"role": "user", "content": exchange.user}]
    if exchange.system:
        messages.insert(0, {"role": "system", "content": exchange.system})
    return messages


def encode_prompt(exchange: Exchange, tokenizer: Tokenizer) -> list[int]:
    """Ids of everything before the reply, the opened assistant message included."""
    return encode_chat(prompt_messages(exchange), tokenizer, thinking=exchange.thinking)


def encode_reply(exchange: Exchange, tokenizer: Tokenizer) -> list[int]:
    """Ids the model should produce after the prompt, up to and including end_of_msg."""
    writer = XtmlWriter(tokenizer)
    if exchange.thinking != "off":
        writer.text(exchange.reasoning)
        writer.close("think")
        writer.open("response")
    writer.text(exchange.response)
    writer.close("response")
    writer.close_message()
    return writer.ids


def answer_sentence(answer: int) -> str:
    """The sentence that ends the response to a word problem; scores look for exactly this."""
    return f"The answer is {answer}."


def _problem(rng: random.Random, held_out: bool, thinking: Thinking) -> tuple[str, str, str]:
    problem = problems.sample(rng, held_out=held_out)
    user, answer = problem.question, answer_sentence(problem.answer)
    if rng.random() < _PROBLEM_SUFFIX_SHARE:
        user += rng.choice(_PROBLEM_SUFFIXES)
    # Without a thinking channel the steps have to be written in the response.
    return user, problem.steps, answer if thinking != "off" else f"{problem.steps} {answer}"


def _story(rng: random.Random) -> tuple[str, str, str]:
    name, animal = rng.choice(NAMES), rng.choice(stories.ANIMALS)
    request = rng.choice(_STORY_REQUESTS)
    # Redrawn where the request leaves it open, which the published prompt sequence depends on.
    if "{name}" not in request:
        name = rng.choice(NAMES)
    if "{animal}" not in request:
        animal = rng.choice(stories.ANIMALS)
    user = request.format(name=name, animal=animal)
    return user, f"A story about a {animal} named {name}.", stories.sample(rng, name, animal)


def _talk(rng: random.Random) -> tuple[str, str, str]:
    openings, reply = rng.choice(SMALL_TALK)
    return rng.choice(openings), "A short reply.", reply
