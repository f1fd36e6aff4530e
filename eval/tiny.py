"""Scores of the small K3: answers, acceptance, equality with plain decoding, calibration.

    python eval/tiny.py [--model DIR] [--sets problems stories prose] [--count N] [--loss]
                        [--json FILE] [--plot FILE]

Everything runs through the reference decoder in float32 on the CPU (about 10 minutes on 2 cores).
Every sequence is decoded twice, with the drafter (8 rows a step) and plainly, and compared.
"""

from kimi.process import begin  # isort: skip

if __name__ == "__main__":
    begin()  # before imports that take long

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kimi.answer import Answer
from kimi.api import Engine, Verify, load
from kimi.assets import TINY_K3
from kimi.benchmark.plot import check_plot
from kimi.cli.console import counting
from kimi.cli.options import Parser
from kimi.cli.program import run_program
from kimi.decoding.calibration import Calibration
from kimi.decoding.stats import Step
from kimi.files import check_writable, write_json, writing
from kimi.lab.train.corpus import heldout_prose
from kimi.lab.train.dialogue import answer_sentence
from kimi.lab.train.prompts import problem_prompts, prose_prompts, story_prompts
from kimi.text import parse_response

CONTEXT = 224  # tokens a sequence may have, prompt included: the published scores' setting
SETS = ("problems", "stories", "prose")
LOSS_ROW = 512


@dataclass
class Score:
    """Totals over one set of prompts."""

    prompts: int = 0
    correct: int | None = None
    tokens: int = 0
    steps: int = 0
    identical: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0
    history: list[Step] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        """The figures of this set."""
        report: dict[str, Any] = {"prompts": self.prompts}
        if self.correct is not None:
            report["accuracy"] = self.correct / self.prompts
        return report | {
            "acceptance_length": self.tokens / self.steps,
            "tokens": self.tokens,
            "steps": self.steps,
            "identical_to_plain": self.identical,
            "tokens_per_second": self.tokens / self.seconds,
            "plain_tokens_per_second": self.tokens / self.plain_seconds,
        }


def decode(engine: Engine, prompt: list[int], drafted: bool) -> Answer:
    """Greedy decoding up to the context's end."""
    verify: Verify = "fixed" if drafted else "off"
    return engine.generate(prompt, CONTEXT - len(prompt), verify=verify, context=CONTEXT).run()


def is_correct(ids: list[int], answer: int, thinking: bool, engine: Engine) -> bool:
    """Whether the message is complete and its response ends with the answer's sentence."""
    parsed = parse_response(ids, engine.tokenizer, start="think" if thinking else "response")
    return parsed.complete and parsed.response.endswith(answer_sentence(answer))


def prompts_of(name: str, count: int, engine: Engine) -> list[tuple[list[int], int | None]]:
    """Prompts of one set with the expected answer, if there is one."""
    if name == "problems":
        return list(problem_prompts(count, engine.tokenizer))
    if name == "stories":
        return [(p, None) for p in story_prompts(count, engine.tokenizer)]
    return [(p, None) for p in prose_prompts(count)]


def score_set(name: str, count: int, engine: Engine) -> Score:
    """Decodes one set of prompts twice."""
    score, prompts = Score(), prompts_of(name, count, engine)
    for drafted in (True, False):  # compile before the clock starts
        decode(engine, prompts[0][0], drafted)
    with counting(name, len(prompts)) as advance:
        for i, (prompt, answer) in enumerate(prompts):
            found, plain = (decode(engine, prompt, drafted) for drafted in (True, False))
            stats = found.stats
            score.prompts += 1
            score.tokens += stats.tokens
            score.steps += stats.steps
            score.seconds += stats.decode_seconds
            score.plain_seconds += plain.stats.decode_seconds
            score.identical += found.ids == plain.ids
            score.history += stats.history
            if answer is not None:
                right = is_correct(found.ids, answer, i % 2 == 1, engine)
                score.correct = (score.correct or 0) + right
            advance()
    return score


def prose_loss(engine: Engine) -> float:
    """Mean loss on the held-out prose, nats a token, in rows of 512 predictions."""
    ids = heldout_prose()
    rows = len(ids) // (LOSS_ROW + 1)
    table = np.asarray(ids[: rows * (LOSS_ROW + 1)], np.int32).reshape(rows, LOSS_ROW + 1)
    total = 0.0
    with counting("held-out prose", rows) as advance:
        for row in table:
            logits = engine.logits(row[:-1].tolist()).astype(np.float64)
            peak = logits.max(-1)
            norm = peak + np.log(np.exp(logits - peak[:, None]).sum(-1))
            total += float((norm - np.take_along_axis(logits, row[1:, None], -1)[:, 0]).mean())
            advance()
    return total / rows


def save_plot(calibration: Calibration, path: Path) -> None:
    """A reliability diagram: observed acceptance against confidence."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    bins = calibration.bins()
    figure, axes = plt.subplots(figsize=(5, 5))
    axes.plot([0, 1], [0, 1], color="0.7", lw=1)
    axes.scatter([b[3] for b in bins], [b[4] for b in bins], s=[5 + b[2] / 10 for b in bins])
    axes.set(xlabel="confidence", ylabel="accepted", xlim=(0, 1), ylim=(0, 1))
    axes.set_title(f"drafted tokens, ECE {calibration.expected_error:.4f}")
    with writing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=120, bbox_inches="tight")


def calibration_report(calibration: Calibration) -> dict[str, Any]:
    """Figures of the confidence head over all sets together."""
    return {
        "drafted_tokens": len(calibration.confidence),
        "brier": calibration.brier,
        "expected_calibration_error": calibration.expected_error,
        "accepted_by_row": calibration.by_row(),
        "bins": [list(b) for b in calibration.bins()],
    }


def print_report(report: dict[str, Any]) -> None:
    """The table a person reads."""
    print(f"{'set':<10}{'prompts':>8}{'correct':>9}{'tokens/step':>13}{'identical':>11}{'tokens/s':>10}"
          f"{'plain':>7}")  # fmt: skip
    for name, s in report["sets"].items():
        correct = f"{s['accuracy']:.1%}" if "accuracy" in s else "-"
        print(
            f"{name:<10}{s['prompts']:>8}{correct:>9}{s['acceptance_length']:>13.3f}"
            f"{s['identical_to_plain']:>11}{s['tokens_per_second']:>10.1f}"
            f"{s['plain_tokens_per_second']:>7.1f}"
        )
    c = report["calibration"]
    print(
        f"confidence: ECE {c['expected_calibration_error']:.4f}, Brier {c['brier']:.4f}, "
        f"{c['drafted_tokens']} drafted tokens"
    )
    for low, high, n, mean, share in c["bins"]:
        print(f"  {low:.1f}-{high:.1f}: {n:6d} tokens, confidence {mean:.3f}, accepted {share:.3f}")
    print("accepted given all before, by row:", " ".join(f"{a:.3f}" for a in c["accepted_by_row"]))
    if "prose_loss" in report:
        print(f"held-out prose: {report['prose_loss']:.4f} nats a token")


def main() -> int:
    """Runs the command."""
    p = Parser(description=__doc__.split("\n")[0])
    p.add_argument("--model", default=str(TINY_K3), help="folder with dspark/ (default: shipped)")
    p.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    p.add_argument("--problems", type=int, default=200, help="number of problems")
    p.add_argument("--count", type=int, default=40, help="number of stories and of prose prompts")
    p.add_argument("--loss", action="store_true", help="also the loss on all held-out prose")
    p.add_argument("--json", help="write all figures to this file")
    p.add_argument("--plot", help="write a reliability diagram to this file")
    args = p.parse_args()
    return run_program(lambda: _run(args), args.verbose)


def _run(args: argparse.Namespace) -> None:
    for path in (args.json, args.plot):
        if path:
            check_writable(path)
    if args.plot:
        check_plot(Path(args.plot))
    engine, start = load(args.model, backend="reference"), time.time()
    scores = {
        name: score_set(name, args.problems if name == "problems" else args.count, engine)
        for name in args.sets
    }
    history = [step for s in scores.values() for step in s.history]
    calibration = Calibration.from_steps(history)
    report: dict[str, Any] = {
        "sets": {name: s.report() for name, s in scores.items()},
        "calibration": calibration_report(calibration),
    }
    if args.loss:
        report["prose_loss"] = prose_loss(engine)
    report["seconds"] = time.time() - start
    try:
        print_report(report)
    finally:
        if args.json:
            write_json(args.json, report)
        if args.plot:
            save_plot(calibration, Path(args.plot))


if __name__ == "__main__":
    sys.exit(main())
