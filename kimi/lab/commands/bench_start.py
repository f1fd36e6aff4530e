"""`bench-start`: measures the time from the command to the first word."""

import argparse
from dataclasses import asdict, fields

from kimi.assets import TINY_K3
from kimi.cli.console import print_json, working
from kimi.lab.bench.start import Start, measure


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--model", default=str(TINY_K3), help="folder or hub id (default: small K3)")
    p.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    with working("starting twice"):
        runs = measure(args.model)
    if args.json:
        print_json({name: asdict(start) for name, start in runs.items()})
        return
    print(f"{'seconds':<12}" + "".join(f"{name:>8}" for name in runs))
    for field in fields(Start):
        values = [getattr(start, field.name) for start in runs.values()]
        shown = [f"{v:8d}" if isinstance(v, int) else f"{v:8.2f}" for v in values]
        print(f"{field.name:<12}" + "".join(shown))
