"""GSM8K: grade-school word problems (1,319 in the test set), scored by the number of the answer.

    python eval/gsm8k.py                                  # the 256 problems shipped, small K3
    python eval/gsm8k.py --hub --model /data/Kimi-K3      # GSM8K's test set, from the hub
    python eval/gsm8k.py --data test.jsonl --model ...    # or from a file: question, answer

Every answer is written to --out as it comes; the same command goes on where it was interrupted.
"""

from kimi.process import begin  # isort: skip

if __name__ == "__main__":
    begin()  # before imports that take long

import argparse
import sys

from kimi.assets import GRADE_SCHOOL
from kimi.errors import InputError
from scoring.extraction import comparable, number
from scoring.run import main, parser
from scoring.sources import HubFile, read
from scoring.task import Item, Task

HUB = HubFile("openai/gsm8k", "main/test-00000-of-00001.parquet")
INSTRUCTION = "Reason step by step, and end with a line of the form: #### <number>"
BUNDLED_TOKENS, TOKENS = 256, 16384
_MARK = "####"


def make_task(args: argparse.Namespace) -> Task:
    """The questions that the options ask for. Raises InputError."""
    if args.hub and args.data:
        raise InputError("--data: expected it or --hub, found both")
    bundled = not (args.hub or args.data)
    if args.max_tokens is None:
        args.max_tokens = BUNDLED_TOKENS if bundled else TOKENS
    table = read(HUB if args.hub else args.data or str(GRADE_SCHOOL), ("question", "answer"))
    expected = [
        _expected(row["answer"], f"{table.path}: row {i}")
        for i, row in enumerate(table.rows, start=1)
    ]
    # The small K3 was trained on bare questions only.
    instruction = "" if bundled else INSTRUCTION

    def ask(question: int, sample: int) -> Item:
        text = table.rows[question]["question"]
        return Item(f"{text}\n\n{instruction}" if instruction else text, expected[question])

    return Task(
        "gsm8k", f"{table.path.name} {table.sha256[:16]}", len(table.rows), ask, number,
        {"instruction": instruction},
    )  # fmt: skip


def _expected(answer: str, where: str) -> str:
    _, mark, value = answer.rpartition(_MARK)
    if not mark or not comparable(value):
        raise InputError(f"{where}: answer: expected '{_MARK} <number>' at its end, found none")
    return comparable(value)


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    p = parser("gsm8k", __doc__.split("\n")[0])
    p.add_argument("--hub", action="store_true", help=f"the test set of {HUB.repository}")
    return p


if __name__ == "__main__":
    sys.exit(main(build_parser(), make_task))
