"""Runs a task: options, the loop over its questions, progress, and the report."""

import argparse
import datetime
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import batched, groupby
from pathlib import Path
from typing import Any

import jax

import kimi
from kimi.api import Engine, Verify
from kimi.checkpoint.fingerprint import fingerprint
from kimi.cli.cluster import INDEX, join_cluster
from kimi.cli.console import stderr, working
from kimi.cli.generate import add_model_options, open_engine
from kimi.cli.options import Parser
from kimi.cli.program import run_program
from kimi.conversation import THINKING
from kimi.decoding.sampling import Sampling
from kimi.errors import InputError
from kimi.files import check_writable, write_json
from kimi.text import parse_response
from scoring import report as reporting
from scoring.decoding import Answers, Given, Settings
from scoring.extraction import FLEXIBLE, VERSION, right
from scoring.hosts import agree
from scoring.records import AnswerFile, Record
from scoring.task import Item, Task

_LINE_SECONDS = 30.0  # between two lines of progress where there is no terminal
FOLDER = Path("build/eval")
MakeTask = Callable[[argparse.Namespace], Task]


def parser(name: str, about: str) -> argparse.ArgumentParser:
    """The options that all tasks have."""
    p = Parser(description=about)
    add_model_options(p)
    p.add_argument("--data", help=".jsonl, .csv or .parquet file of the questions")
    p.add_argument("--count", type=int, help="only the first so many questions")
    p.add_argument("--samples", type=int, default=1, help="answers to every question")
    p.add_argument("--thinking", choices=THINKING, default="max", help="thinking effort")
    p.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    p.add_argument("--top-p", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    p.add_argument("--max-tokens", type=int, help="of an answer, thoughts included")
    p.add_argument(
        "--verify", choices=("off", "fixed", "adaptive"),
        help="rows verified a step (default: fixed with a drafter, off with a batch, for which the "
        "kernel has no drafts)",
    )  # fmt: skip
    p.add_argument("--batch", type=int, default=1, help="sequences side by side")
    p.add_argument(
        "--out", default=FOLDER / f"{name}.jsonl", type=Path,
        help="answers, one a line; those already there are kept (default %(default)s)",
    )  # fmt: skip
    p.add_argument("--json", help="write the report to this file")
    return p


def main(p: argparse.ArgumentParser, make_task: MakeTask) -> int:
    """Runs a script; returns its exit code."""
    args = p.parse_args()
    line = f"interrupted; the same command goes on from {args.out}"
    return run_program(lambda: _checked(args, p, make_task), args.verbose, line)


def _checked(args: argparse.Namespace, p: argparse.ArgumentParser, make_task: MakeTask) -> None:
    for option, least in (("count", 1), ("samples", 1), ("batch", 1), ("max_tokens", 1)):
        value = getattr(args, option)
        if value is not None and value < least:
            name = option.replace("_", "-")
            raise InputError(f"--{name}: expected at least {least}, found {value}")
    if os.environ.get(INDEX, "0") == "0":
        if args.out == p.get_default("out"):  # no other folder is made: a wrong name may say any
            args.out.parent.mkdir(parents=True, exist_ok=True)
        for path in filter(None, (args.out, args.json)):
            check_writable(path)
    join_cluster()
    report = _run(args, make_task(args))
    if report is not None:
        try:
            print("\n".join(reporting.lines(report)))
        finally:
            if args.json:
                write_json(args.json, report)


def _run(args: argparse.Namespace, task: Task) -> dict[str, Any] | None:
    """Answers what is not answered yet. Returns the report, on the first host only."""
    if jax.process_index() == 0:
        _check_out(args.out)
    if args.count is not None and args.count > task.count:
        raise InputError(f"--count: expected at most {task.count} questions, found {args.count}")
    verify: Verify | None = args.verify or ("off" if args.batch > 1 else None)
    with working("loading the model"):
        engine = open_engine(args, draft=verify != "off")
    schedule = engine.schedule(verify)
    sampling = Sampling(args.temperature, args.top_p, args.seed)
    decoding = Settings(args.max_tokens, sampling, schedule, args.batch)
    settings = _settings(args, task, engine, decoding)
    jobs = range((args.count or task.count) * args.samples)
    items = [task.ask(*divmod(job, args.samples)) for job in jobs]
    prompts = [engine.encode(item.prompt, thinking=args.thinking) for item in items]
    by_length = sorted(jobs, key=lambda job: len(prompts[job]))
    answers = Answers(engine, decoding, len(prompts[by_length[-1]]))

    def answer(todo: Sequence[int], add: Callable[[list[Record]], None]) -> None:
        groups = list(_groups(todo, args.batch))
        with working("compiling"):
            for size in sorted({len(group) for group in groups}):
                # The two ends: prompts of different lengths may take different programs.
                for first in (by_length[:size], by_length[-size:]):
                    answers.warm_up([prompts[job] for job in first])
        for group in groups:
            found = answers([prompts[job] for job in group], group[0])
            add([
                _record(job, items[job], given, task, args, engine)
                for job, given in zip(group, found, strict=True)
            ])  # fmt: skip

    if jax.process_index() != 0:
        answer(agree(set(), len(jobs), settings), lambda _: None)
        return None
    with AnswerFile(args.out, settings, _run_facts(args)) as file:
        todo = agree(set(file.answers), len(jobs), settings)
        progress = _Progress(file, len(jobs))
        answer(todo, progress.add)
        return {
            "task": task.name,
            **reporting.summarize([file.answers[job] for job in jobs]),
            "settings": settings,
            "runs": file.runs,
        }


def _check_out(out: Path) -> None:
    """Finds out before the work whether answers can be added to a file."""
    if out.parent == FOLDER:  # where answers lie if no file is named
        with suppress(OSError):
            out.parent.mkdir(parents=True, exist_ok=True)
    check_writable(out)
    if out.exists() and not out.is_file():
        raise InputError(f"{out}: cannot be written: expected a file that can be read again")


def _groups(todo: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Neighbours in groups of up to `size`: those of a batch draw with consecutive seeds."""
    for _, neighbours in groupby(enumerate(todo), lambda pair: pair[1] - pair[0]):
        yield from batched((job for _, job in neighbours), size)


def _record(
    job: int, item: Item, given: Given, task: Task, args: argparse.Namespace, engine: Engine
) -> Record:
    question, sample = divmod(job, args.samples)
    parsed = parse_response(
        given.answer.ids, engine.tokenizer, start="response" if args.thinking == "off" else "think"
    )
    extracted = task.extract(parsed.response)
    stats = given.answer.stats
    return {
        "job": job,
        "question": question,
        "sample": sample,
        "prompt": item.prompt,
        "output": engine.tokenizer.decode(given.answer.ids),
        "response": parsed.response,
        "extracted": extracted,
        "expected": item.expected,
        "correct": right(extracted, item.expected),
        "finish": stats.finish,
        "prompt_tokens": stats.prompt_tokens,
        "tokens": stats.tokens,
        "steps": stats.steps,
        "acceptance_length": round(stats.acceptance_length, 4),
        "seconds": round(given.seconds, 4),
        "decode_seconds": round(stats.decode_seconds, 4),
        "batch": given.batch,
    }


def _settings(
    args: argparse.Namespace, task: Task, engine: Engine, decoding: Settings
) -> dict[str, Any]:
    """Everything that an answer depends on."""
    kernel = engine.backend == "kernel"
    return {
        "task": task.name,
        "data": task.source,
        **task.settings,
        "extraction": VERSION,
        "checkpoint": fingerprint(engine.model.checkpoint)[:16],
        "backend": engine.backend,
        **({"ranks": args.ranks, "experts": args.experts} if kernel else {"dtype": args.dtype}),
        "thinking": args.thinking,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "seed": args.seed,
        "samples": args.samples,
        "max_tokens": args.max_tokens,
        "drafting": "off" if decoding.schedule is None else str(decoding.schedule),
        "drafter": None if decoding.schedule is None else args.drafter,
        "batch": args.batch,
    }


def _run_facts(args: argparse.Namespace) -> dict[str, Any]:
    devices = jax.devices()
    return {
        "model": str(args.model),
        "commit": _commit(),
        "version": kimi.__version__,
        "jax": jax.__version__,
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str:
    """Of this checkout; with a mark if files differ from it."""
    root = Path(kimi.__file__).parents[1]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown: git is not installed"
    return done.stdout.strip() or "unknown: not a git checkout"


class _Progress:
    """Adds answers to the file, and says how it stands: a line that changes, or one now and then.

    Args:
      file: of the answers.
      total: answers wanted.
    """

    def __init__(self, file: AnswerFile, total: int):
        self._file, self._total, self._said = file, total, time.monotonic()
        if file.answers:
            print(f"{file.path}: {len(file.answers)} answers kept", file=sys.stderr)

    def add(self, new: list[Record]) -> None:
        """Adds the answers of a batch."""
        self._file.add(new)
        if stderr.is_terminal:
            print(f"\r{self._line()}", end="", file=sys.stderr, flush=True)
            if len(self._file.answers) >= self._total:
                print(file=sys.stderr)
        elif time.monotonic() - self._said > _LINE_SECONDS:
            self._said = time.monotonic()
            print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        found = list(self._file.answers.values())
        right = sum(a["correct"][FLEXIBLE] for a in found)
        cut = sum(a["finish"] != "stop" for a in found)
        tokens = sum(a["tokens"] for a in found)
        rate = tokens / sum(a["seconds"] / a["batch"] for a in found)
        return (
            f"{len(found)}/{self._total}: {right / len(found):.4f} right, {cut} truncated, "
            f"{tokens / sum(a['steps'] for a in found):.2f} tokens a step, {rate:.1f} tokens/s "
        )
