"""The figures of a file of answers."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from scoring.extraction import FLEXIBLE, READINGS
from scoring.records import Record

_Z = 1.959964  # of a 95 % interval


def wilson(successes: float, n: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share `successes / n`; n is at least 1."""
    share = successes / n
    middle = share + _Z**2 / (2 * n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def summarize(answers: Sequence[Record]) -> dict[str, Any]:
    """Totals of at least one answer.

    `accuracy` is the mean over all answers. Its interval counts questions, not answers, as samples
    of one question are not independent; with several samples it is therefore a wide one.
    `majority` is the share of questions whose most frequent answer is right.
    """
    questions = defaultdict[str, list[Record]](list)
    for answer in answers:
        questions[answer["question"]].append(answer)
    seconds = sum(a["seconds"] / a["batch"] for a in answers)
    tokens, steps = sum(a["tokens"] for a in answers), sum(a["steps"] for a in answers)
    decoding = sum(a["decode_seconds"] for a in answers)
    return {
        "questions": len(questions),
        "n": len(answers),
        **{name: _scores(questions.values(), name) for name in answers[0]["extracted"]},
        "without_answer": sum(a["extracted"][FLEXIBLE] is None for a in answers),
        "truncated": sum(a["finish"] != "stop" for a in answers),
        "acceptance_length": tokens / steps,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "tokens_per_second_of_a_sequence": tokens / decoding,
    }


def _scores(questions: Iterable[list[Record]], reading: str) -> dict[str, Any]:
    shares, majority = [], 0
    for samples in questions:
        shares.append(sum(a["correct"][reading] for a in samples) / len(samples))
        chosen, _ = Counter(a["extracted"][reading] for a in samples).most_common(1)[0]
        majority += any(a["correct"][reading] for a in samples if a["extracted"][reading] == chosen)
    weights = [len(samples) for samples in questions]
    mean = sum(s * w for s, w in zip(shares, weights, strict=True)) / sum(weights)
    low, high = wilson(mean * len(shares), len(shares))
    return {"accuracy": mean, "interval_95": [low, high], "majority": majority / len(shares)}


def lines(report: dict[str, Any]) -> list[str]:
    """The report as a person reads it."""
    found = [f"{report['task']}: {report['questions']} questions, {report['n']} answers"]
    for reading in (name for name in READINGS if name in report):
        score = report[reading]
        low, high = score["interval_95"]
        line = f"{reading:<9} accuracy {score['accuracy']:.4f}  (95 %: {low:.4f} to {high:.4f})"
        if report["n"] > report["questions"]:
            line += f"  majority {score['majority']:.4f}"
        found.append(line)
    found += [
        f"truncated {report['truncated']}, without an answer {report['without_answer']}",
        f"mean acceptance length {report['acceptance_length']:.3f} tokens a step",
        f"{report['tokens']} tokens in {report['seconds']:.1f} s: "
        f"{report['tokens_per_second']:.1f} tokens/s; a sequence, without its prompt: "
        f"{report['tokens_per_second_of_a_sequence']:.1f} tokens/s",
        "settings " + ", ".join(f"{k}={v}" for k, v in report["settings"].items()),
    ]
    for run in report["runs"]:
        found.append("run " + ", ".join(f"{k}={v}" for k, v in run.items()))
    return found
