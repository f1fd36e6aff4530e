"""The figures of a report, on answers made up for the purpose."""

import pytest

from scoring.report import lines, summarize, wilson


def answer(question: int, value: str | None, *, batch=1, finish="stop") -> dict:
    return {
        "question": question,
        "extracted": {"strict": None, "flexible": value},
        "expected": "7",
        "correct": {"strict": False, "flexible": value == "7"},
        "finish": finish,
        "tokens": 12,
        "steps": 3,
        "seconds": 2.0,
        "decode_seconds": 1.0,
        "batch": batch,
    }


def test_wilson():
    """Against the table of Wilson (1927) as Newcombe (1998) gives it: 81 of 263."""
    low, high = wilson(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert wilson(0, 10)[0] == 0 and wilson(10, 10)[1] == pytest.approx(1)
    assert wilson(0, 10)[1] == pytest.approx(0.2775, abs=1e-4)


def test_totals():
    found = summarize([answer(0, "7"), answer(1, "8"), answer(2, None, finish="length")])
    assert found["flexible"]["accuracy"] == pytest.approx(1 / 3)
    assert found["flexible"]["interval_95"] == list(wilson(1, 3))
    assert found["strict"]["accuracy"] == 0
    assert (found["n"], found["questions"], found["truncated"]) == (3, 3, 1)
    assert found["without_answer"] == 1
    assert found["acceptance_length"] == 4
    assert found["tokens_per_second"] == 36 / 6
    assert found["tokens_per_second_of_a_sequence"] == 36 / 3


def test_sequences_side_by_side_share_their_time():
    found = summarize([answer(i, "7", batch=4) for i in range(4)])
    assert found["seconds"] == 2 and found["tokens_per_second"] == 24
    assert found["tokens_per_second_of_a_sequence"] == 12


def test_samples_of_a_question_are_not_independent():
    one = [answer(0, v) for v in ("7", "7", "8")]
    two = [answer(1, v) for v in ("8", "8", "7")]
    found = summarize([*one, *two])
    assert found["flexible"]["accuracy"] == 0.5
    assert found["flexible"]["interval_95"] == pytest.approx(list(wilson(1, 2)))
    assert found["flexible"]["majority"] == 0.5
    assert found["strict"]["majority"] == 0
    text = lines({"task": "t", **found, "settings": {"seed": 1}, "runs": [{"commit": "c"}]})
    assert "majority 0.5000" in text[2] and text[-1] == "run commit=c"
