"""Equality across paths: the same questions, greedily, by every way of decoding.

    python eval/paths.py                                        # reference, plain and drafted
    python eval/paths.py --paths reference kernel kernel-drafted --count 50
    python eval/paths.py --paths kernel kernel-drafted --model /data/Kimi-K3 --data test.jsonl

Compares the token ids of every path with those of the first one, and exits with 1 if any differ.
The kernel is interpreted where there is no TPU: there, minutes for compiling and seconds a step.
"""

from kimi.process import begin  # isort: skip

if __name__ == "__main__":
    begin()  # before imports that take long

import argparse
import sys
from typing import Any, Literal

import gsm8k
from kimi.api import Backend, Engine, load
from kimi.cli.cluster import join_cluster
from kimi.cli.console import counting, working
from kimi.cli.generate import add_model_options
from kimi.cli.options import Parser
from kimi.cli.program import run_program
from kimi.conversation import THINKING
from kimi.decoding.sampling import Sampling
from kimi.errors import InputError
from kimi.files import check_writable, write_json
from kimi.text import parse_response
from scoring.decoding import Answers, Given, Settings
from scoring.extraction import FLEXIBLE, right
from scoring.task import Task

PATHS: dict[str, tuple[Backend, bool, int]] = {  # backend, drafted, sequences side by side
    "reference": ("reference", False, 1),
    "reference-drafted": ("reference", True, 1),
    "kernel": ("kernel", False, 1),
    "kernel-drafted": ("kernel", True, 1),
    "kernel-batch": ("kernel", False, 8),
}


def open_path(name: str, args: argparse.Namespace) -> Engine:
    """The engine of a path."""
    backend, drafted, _ = PATHS[name]
    kernels_own = {"ranks": args.ranks, "experts": args.experts, "store": args.store}
    return load(
        args.model, drafter=args.drafter if drafted else None, draft=drafted, backend=backend,
        **({"dtype": args.dtype} if backend == "reference" else kernels_own),
    )  # fmt: skip


def decode(name: str, engine: Engine, task: Task, args: argparse.Namespace) -> list[Given]:
    """Greedy answers of a path to the first `args.count` questions."""
    _, drafted, batch = PATHS[name]
    questions = [task.ask(question, 0).prompt for question in range(args.count)]
    prompts = [engine.encode(text, thinking=args.thinking) for text in questions]
    schedule = engine.schedule("fixed" if drafted else "off")
    decoder = Answers(
        engine, Settings(args.max_tokens, Sampling(), schedule, batch), max(map(len, prompts))
    )
    found: list[Given] = []
    with counting(name, len(prompts)) as advance:
        for start in range(0, len(prompts), batch):
            for answer in decoder(prompts[start : start + batch]):
                found.append(answer)
                advance()
    return found


def compare(names: list[str], task: Task, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a path: how many answers are the first path's, and how many are right."""
    rows: list[dict[str, Any]] = []
    first: list[Given] = []
    for name in names:
        with working(f"loading for {name}"):
            engine = open_path(name, args)
        found = decode(name, engine, task, args)
        first = first or found
        pairs = enumerate(zip(found, first, strict=True))
        different = [i for i, (a, b) in pairs if a.answer.ids != b.answer.ids]
        rows.append({
            "path": name,
            "questions": len(found),
            "identical": len(found) - len(different),
            "different": different,
            "right": sum(_is_right(i, a, task, engine, args) for i, a in enumerate(found)),
            "tokens": sum(a.answer.stats.tokens for a in found),
            "acceptance_length": sum(a.answer.stats.tokens for a in found)
            / sum(a.answer.stats.steps for a in found),
            "seconds": sum(a.seconds / a.batch for a in found),
        })  # fmt: skip
        print_row(rows[-1])
    return rows


def _is_right(
    question: int, given: Given, task: Task, engine: Engine, args: argparse.Namespace
) -> bool:
    start: Literal["think", "response"] = "response" if args.thinking == "off" else "think"
    parsed = parse_response(given.answer.ids, engine.tokenizer, start=start)
    return right(task.extract(parsed.response), task.ask(question, 0).expected)[FLEXIBLE]


def print_row(row: dict[str, Any]) -> None:
    """A line of the table that a person reads."""
    different = f", different: {row['different']}" if row["different"] else ""
    print(
        f"{row['path']:<18} identical {row['identical']}/{row['questions']}, right {row['right']}, "
        f"{row['acceptance_length']:.2f} tokens a step, {row['seconds']:.1f} s{different}",
        flush=True,
    )


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    p = Parser(description=__doc__.split("\n")[0])
    add_model_options(p)
    p.add_argument(
        "--paths", nargs="+", choices=tuple(PATHS), default=["reference", "reference-drafted"]
    )
    p.add_argument("--data", help="as of gsm8k.py (default: the questions shipped)")
    p.add_argument("--count", type=int, default=50, help="questions (default %(default)s)")
    p.add_argument("--thinking", choices=THINKING, default="off")
    p.add_argument("--max-tokens", type=int, default=gsm8k.BUNDLED_TOKENS)
    p.add_argument("--json", help="write the rows to this file")
    p.set_defaults(hub=False)
    return p


def main() -> int:
    """Runs the script; returns its exit code."""
    args = build_parser().parse_args()
    return run_program(lambda: _run(args), args.verbose)


def _run(args: argparse.Namespace) -> int:
    if args.json:
        check_writable(args.json)
    if args.backend is not None:
        raise InputError("--backend: expected --paths alone, which says it")
    join_cluster()
    task = gsm8k.make_task(args)
    if not 1 <= args.count <= task.count:
        raise InputError(f"--count: expected 1 to {task.count} questions, found {args.count}")
    rows = compare(args.paths, task, args)
    if args.json:
        write_json(args.json, rows)
    return int(any(row["different"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
