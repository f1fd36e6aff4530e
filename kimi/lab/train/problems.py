"""Generated word problems of one or two steps, with a split that no seed can leak across.

A problem is its template's position, its operation kind and its numbers. Whether it is held out
depends on these alone, never on the seed or on the words filled in, so the same arithmetic in the
same wording cannot appear on both sides. Names and objects do occur on both sides: the held-out
score is an in-distribution one.
"""

import hashlib
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass

from kimi.lab.train.people import NAMES, pronouns
from kimi.lab.train.templates import BOXES, PLACES, TEMPLATES, THINGS

LARGEST = 200
"""Intermediate and final results lie in 1..LARGEST."""

HELD_OUT_ONE_IN = 50
"""One problem in this many is never trained on."""

EVALUATION_SEED = 2024
"""Seed of the problems that the published scores are for."""

_APPLY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}

# Largest value of each number (the smallest is 2), by operation kind; single steps have no third.
_LIMITS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("++", "+-", "-+", "--"), (60, 40, 30)),
    **dict.fromkeys(("*+", "*-"), (12, 12, 30)),
    **dict.fromkeys(("+*", "-*"), (20, 15, 6)),
    "**": (6, 6, 6),
    **dict.fromkeys(("+", "-"), (80, 60)),
    "*": (12, 12),
}


@dataclass(frozen=True)
class Problem:
    """A question, its worked steps ("6 + 6 = 12. 12 * 3 = 36.") and its answer."""

    question: str
    steps: str
    answer: int


@dataclass(frozen=True)
class _Arithmetic:
    """What identifies a problem: template position, operation kind, numbers (c is 0 if unused)."""

    template: int
    kind: str
    a: int
    b: int
    c: int

    @property
    def held_out(self) -> bool:
        """Whether training never sees it; decided by template and numbers alone."""
        key = f"{self.template} {self.kind} {self.a} {self.b} {self.c}"
        digest = hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
        return int(digest[:8], 16) % HELD_OUT_ONE_IN == 0

    @property
    def results(self) -> tuple[int, ...]:
        """The result of every step, the answer last."""
        first = _APPLY[self.kind[0]](self.a, self.b)
        return (first,) if len(self.kind) == 1 else (first, _APPLY[self.kind[1]](first, self.c))

    @property
    def steps(self) -> str:
        """The calculation in words, one sentence a step."""
        first, *rest = self.results
        text = f"{self.a} {self.kind[0]} {self.b} = {first}."
        return text + "".join(f" {first} {self.kind[1]} {self.c} = {y}." for y in rest)


def sample(rng: random.Random, *, held_out: bool = False, two_step: bool = False) -> Problem:
    """Draw one problem.

    Args:
      rng: source of randomness; equal states give equal problems.
      held_out: draw from the held-out fiftieth instead of the trainable rest.
      two_step: leave out single-step problems.
    """
    arithmetic = _sample_arithmetic(rng, held_out=held_out, two_step=two_step)
    return Problem(_word(rng, arithmetic), arithmetic.steps, arithmetic.results[-1])


def evaluation_problems(count: int) -> list[Problem]:
    """The first `count` held-out two-step problems of `EVALUATION_SEED`."""
    rng = random.Random(EVALUATION_SEED)
    return [sample(rng, held_out=True, two_step=True) for _ in range(count)]


def _sample_arithmetic(rng: random.Random, *, held_out: bool, two_step: bool) -> _Arithmetic:
    while True:
        template = rng.randrange(len(TEMPLATES))
        kinds = TEMPLATES[template].kinds
        kind = kinds[0] if len(kinds) == 1 else rng.choice(kinds)
        if two_step and len(kind) == 1:
            continue
        arithmetic = _sample_numbers(rng, template, kind)
        if arithmetic.held_out == held_out:
            return arithmetic


def _sample_numbers(rng: random.Random, template: int, kind: str) -> _Arithmetic:
    while True:
        a, b, *c = (rng.randint(2, limit) for limit in _LIMITS[kind])
        arithmetic = _Arithmetic(template, kind, a, b, c[0] if c else 0)
        if all(0 < result <= LARGEST for result in arithmetic.results):
            return arithmetic


def _word(rng: random.Random, arithmetic: _Arithmetic) -> str:
    """Fill a template's words in. Draws every word, used or not, to keep the sequence regular."""
    name, other = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)
    place = rng.choice(PLACES)
    boxes = rng.choice(BOXES)
    pronoun = pronouns(name)
    return TEMPLATES[arithmetic.template].text.format(
        name=name,
        other=other,
        things=things,
        place=place,
        boxes=boxes,
        He=pronoun.He,
        him=pronoun.him,
        a=arithmetic.a,
        b=arithmetic.b,
        c=arithmetic.c,
        first=arithmetic.kind[0],
        second=arithmetic.kind[-1],
    )
