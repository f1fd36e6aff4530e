"""`costs`: measures the cost table of adaptive verification on this machine."""

import argparse

from kimi.assets import TINY_K3
from kimi.cli.console import print_json, working
from kimi.cli.generate import add_drafter_option
from kimi.decoding.schedule import CostTable
from kimi.files import check_writable
from kimi.models import PRECISIONS, open_model

_CONTEXT = 512


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--model", default=str(TINY_K3), help="folder or hub id (default: small K3)")
    add_drafter_option(p)
    p.add_argument("--dtype", choices=PRECISIONS, default="float32", help="of the model")
    p.add_argument("--out", help="JSON file for `generate --verify adaptive --costs FILE`")
    p.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    out = check_writable(args.out) if args.out else None
    with working("loading and measuring"):
        model = open_model(args.model, drafter=args.drafter, dtype=args.dtype)
        table = model.decoder(_CONTEXT).measure_costs()
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
