"""GPQA-Diamond: 198 graduate-level questions of four options, scored by the letter chosen.

    python eval/gpqa.py --model /data/Kimi-K3                        # from the hub (gated)
    python eval/gpqa.py --data gpqa_diamond.csv --model /data/Kimi-K3

The order of the options is drawn anew for every question and sample, from --seed. Every answer is
written to --out as it comes; the same command goes on where it was interrupted.
"""

from kimi.process import begin  # isort: skip

if __name__ == "__main__":
    begin()  # before imports that take long

import argparse
import random
import sys

from scoring.choices import LETTERS
from scoring.extraction import letter
from scoring.run import main, parser
from scoring.sources import HubFile, read
from scoring.task import Item, Task

HUB = HubFile("Idavidrein/gpqa", "gpqa_diamond.csv", license_gate=True)
CORRECT = "Correct Answer"
OPTIONS = (CORRECT, "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
INSTRUCTION = (
    "Think it through, and end with a line of the form: The answer is (X). X is one of A, B, C, D."
)
TOKENS = 65536


def make_task(args: argparse.Namespace) -> Task:
    """The questions that the options ask for. Raises InputError."""
    if args.max_tokens is None:
        args.max_tokens = TOKENS
    table = read(args.data or HUB, ("Question", *OPTIONS))

    def ask(question: int, sample: int) -> Item:
        row = table.rows[question]
        order = list(OPTIONS)
        random.Random(f"{args.seed}/{question}/{sample}").shuffle(order)
        choices = [f"({x}) {row[name].strip()}" for x, name in zip(LETTERS, order, strict=True)]
        text = "\n".join([row["Question"].strip(), "", *choices, "", INSTRUCTION])
        return Item(text, LETTERS[order.index(CORRECT)])

    return Task(
        "gpqa-diamond", f"{table.path.name} {table.sha256[:16]}", len(table.rows), ask, letter,
        {"instruction": INSTRUCTION},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(parser("gpqa", __doc__.split("\n")[0]), make_task))
