"""`inspect`: lists the contents and problems of a checkpoint, without loading it."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from kimi.checkpoint import Checkpoint, DraftCheckpoint, Summary, TensorStore
from kimi.checkpoint.hub import resolve
from kimi.cli.console import print_json, working
from kimi.config.draft import is_drafter
from kimi.errors import CheckpointError
from kimi.fields import load_json

_FEW = 40  # tensors listed without --all


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("dir", metavar="DIR", help="folder or hub id of a K3 checkpoint or a drafter")
    p.add_argument("--all", action="store_true", help="list every tensor")
    p.add_argument("--json", action="store_true", help="print everything as JSON")


def run(args: argparse.Namespace) -> None:
    """Runs the command. Raises CheckpointError if there are problems."""
    with working("reading headers"):
        path = resolve(args.dir)
        store = open_store(path)
        problems = store.problems()
        summary = _summary_or_none(store)
    if args.json:
        print_json(_report(store, summary, problems))
    else:
        _print_config(store)
        if summary is not None:
            _print_tensors(summary, None if args.all else _FEW)
        print("\nproblems: none" if not problems else f"\nproblems: {len(problems)}")
        for problem in problems:
            print(f"  {problem}")
    if problems:
        raise CheckpointError(f"{path}: {len(problems)} problems found, the first: {problems[0]}")


def open_store(path: Path) -> Checkpoint | DraftCheckpoint:
    """Opens a target or a drafter, as its config.json says."""
    if is_drafter(load_json(path / "config.json")):
        return DraftCheckpoint(path)
    return Checkpoint(path)


def _summary_or_none(store: TensorStore) -> Summary | None:
    """The tensor table; None if a file cannot be read, which is one of the problems."""
    try:
        return store.summary()
    except CheckpointError:
        return None


def _report(
    store: Checkpoint | DraftCheckpoint, summary: Summary | None, problems: list[str]
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "path": str(store.path),
        "config": dataclasses.asdict(store.config),
        "problems": problems,
    }
    if summary is not None:
        report |= {
            "total_bytes": summary.total_bytes,
            "bytes_by_family": summary.bytes_by_family,
            "tensors": [dataclasses.asdict(row) for row in summary.rows],
        }
    return report


def _print_config(store: Checkpoint | DraftCheckpoint) -> None:
    print(f"{store.path}: {'K3' if isinstance(store, Checkpoint) else 'DSpark drafter'}")
    for name, value in dataclasses.asdict(store.config).items():
        print(f"  {name:<28} {value}")


def _print_tensors(summary: Summary, limit: int | None) -> None:
    print(f"\n{'bytes':>15}  family")
    for family, size in summary.bytes_by_family.items():
        print(f"{size:>15,}  {family}")
    print(f"{summary.total_bytes:>15,}  in {len(summary.rows)} tensors\n")
    for row in summary.rows[:limit]:
        print(f"{row.nbytes:>15,}  {row.dtype:<5} {list(row.shape)!s:<20} {row.name}")
    if limit is not None and len(summary.rows) > limit:
        print(f"{'':>15}  ... and {len(summary.rows) - limit} more (--all lists them)")
