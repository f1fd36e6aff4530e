"""The questions shipped are the ones that the generator makes, and held out."""

import json
import random
import re

from kimi.assets import GRADE_SCHOOL, PROMPTS
from kimi.lab.main import main
from kimi.lab.train import grade_school, problems
from kimi.lab.train.grade_school import COUNT, rows


def test_the_file_is_what_the_generator_makes():
    assert [json.loads(line) for line in GRADE_SCHOOL.read_text().splitlines()] == rows()


def test_writing_them_anew(tmp_path):
    """Both files that are shipped."""
    assert main(["write-prompts", "--out", str(tmp_path)]) == 0
    for file in (GRADE_SCHOOL, PROMPTS):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_questions_differ_and_answers_are_right():
    found = rows()
    assert len({row["question"] for row in found}) == len(found) == COUNT >= 200
    for row in found:
        *steps, last = row["answer"].split("\n")
        assert 1 <= len(steps) <= 2
        for step in steps:
            a, sign, b, result = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)\.", step).groups()
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(
                result
            )
        assert last == f"#### {result}"


def test_none_is_ever_trained_on(monkeypatch):
    """Every question comes from a held-out arithmetic, which trainable samples never have."""
    drawn = []
    sample = problems._sample_arithmetic

    def spy(rng, *, held_out, two_step):
        drawn.append(sample(rng, held_out=held_out, two_step=two_step))
        return drawn[-1]

    monkeypatch.setattr(problems, "_sample_arithmetic", spy)
    rows()
    assert len(drawn) >= COUNT and all(arithmetic.held_out for arithmetic in drawn)
    drawn.clear()
    rng = random.Random(grade_school.SEED)
    for _ in range(500):
        problems.sample(rng)
    assert not any(arithmetic.held_out for arithmetic in drawn)
