"""`costs`: measures the cost table of adaptive verification on this machine."""

import argparse

from kimi.cli.console import print_json, working
from kimi.cli.generate import add_model_options, open_engine
from kimi.decoding.schedule import CostTable
from kimi.files import check_writable


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model_options(p)
    p.add_argument("--out", help="JSON file for `generate --verify adaptive --costs FILE`")
    p.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    out = check_writable(args.out) if args.out else None
    with working("loading and measuring"):
        table = open_engine(args, draft=True).measure_costs()
    try:
        _print(table, args.json)
    finally:
        if out is not None:
            table.save(out)


def _print(table: CostTable, as_json: bool) -> None:
    if as_json:
        print_json({"draft": table.draft, "rows": {str(k): v for k, v in table.rows.items()}})
        return
    print(f"draft        {table.draft:8.2f} ms")
    for rows, cost in table.rows.items():
        print(f"verify {rows:2d}    {cost:8.2f} ms")
