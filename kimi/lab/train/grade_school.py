"""The evaluation set that ships with the library: word problems in the format of GSM8K.

All problems are held out: no training data holds the same numbers in the same template (see
`problems`). Names, objects and templates are those of the training data, so the score is an
in-distribution one. The wording of an answer is GSM8K's: steps, then `#### ` and the number.
"""

import random

from kimi.lab.train.problems import Problem, sample

COUNT = 256
SEED = 2026  # neither training nor the other published scores draw from it


def rows() -> list[dict[str, str]]:
    """The rows of `assets.GRADE_SCHOOL`: `COUNT` different held-out questions, 1 or 2 steps."""
    rng = random.Random(SEED)
    found: dict[str, str] = {}
    while len(found) < COUNT:
        problem = sample(rng, held_out=True)
        found.setdefault(problem.question, _answer(problem))
    return [{"question": question, "answer": answer} for question, answer in found.items()]


def _answer(problem: Problem) -> str:
    steps = problem.steps.replace(". ", ".\n")
    return f"{steps}\n#### {problem.answer}"
