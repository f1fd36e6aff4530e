import hashlib
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.lab.train import problems


def checksum(sampled: list[problems.Problem]) -> str:
    rows = [[p.question, p.steps, p.answer] for p in sampled]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def test_the_published_score_is_for_these_problems():
    sampled = problems.evaluation_problems(200)
    assert sampled[0] == problems.Problem(
        "A tray holds 11 cherries, but 4 of them are bad. "
        "How many good cherries are on 5 such trays?",
        "11 - 4 = 7. 7 * 5 = 35.",
        35,
    )
    assert checksum(sampled) == "15c44fddde3d210566e8abef22ff9938e862f002ab7dd364a56aab3db1a58086"


def test_training_sequence_is_frozen():
    rng = random.Random(7)
    sampled = [problems.sample(rng) for _ in range(500)]
    assert checksum(sampled) == "4c3686c3d59cd828e2992623a5da6bab11b7b24676e385c6379e2b59082983db"


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), held_out=st.booleans(), two_step=st.booleans())
def test_steps_lead_to_the_answer(seed: int, held_out: bool, two_step: bool):
    problem = problems.sample(random.Random(seed), held_out=held_out, two_step=two_step)
    steps = re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)\.", problem.steps)
    assert " ".join(f"{a} {op} {b} = {y}." for a, op, b, y in steps) == problem.steps
    apply = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    for i, (a, op, b, y) in enumerate(steps):
        assert apply[op](int(a), int(b)) == int(y)
        assert 0 < int(y) <= problems.LARGEST
        assert i == 0 or a == steps[i - 1][3]
    assert int(steps[-1][3]) == problem.answer
    assert len(steps) == 2 or (len(steps) == 1 and not two_step)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_number_and_word_of_the_question_is_filled_in(seed: int):
    problem = problems.sample(random.Random(seed))
    assert not re.search(r"[{}]", problem.question)
    first = re.match(r"(\d+) . (\d+)", problem.steps)
    assert first is not None
    assert {first[1], first[2]} <= set(re.findall(r"\d+", problem.question))


def numbers_in_wording(problem: problems.Problem) -> tuple[str, str]:
    """What the split is by, as far as a reader sees it."""
    return problem.steps, re.sub(r"\b[A-Z]\w+|\b[a-z]+s\b", "_", problem.question)


@pytest.mark.parametrize("seed", [0, 1])
def test_held_out_problems_never_occur_in_training(seed: int):
    rng = random.Random(seed)
    trained = {numbers_in_wording(problems.sample(rng)) for _ in range(3000)}
    held_out = {numbers_in_wording(problems.sample(rng, held_out=True)) for _ in range(300)}
    assert held_out.isdisjoint(trained)


def test_held_out_share():
    rng = random.Random(3)
    drawn = [problems._sample_numbers(rng, 0, "++").held_out for _ in range(5000)]
    assert 60 < sum(drawn) < 140
