"""`costs`: times this machine and writes the table that adaptive verification reads."""

import argparse

from kimi.assets import TINY_K3
from kimi.cli.console import check_writable, print_json, working
from kimi.models import PRECISIONS, open_model

_CONTEXT = 512


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--model", default=str(TINY_K3), help="folder or hub id (default: small K3)")
    p.add_argument("--draft-model", help="the drafter's folder or hub id (default: MODEL/dspark)")
    p.add_argument("--dtype", choices=tuple(PRECISIONS), default="float32")
    p.add_argument("--out", help="JSON file for `generate --verify adaptive --costs FILE`")
    p.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    out = check_writable(args.out) if args.out else None
    with working("loading and measuring"):
        model = open_model(args.model, drafter=args.draft_model, dtype=args.dtype)
        table = model.decoder(_CONTEXT).measure_costs()
    if args.json:
        print_json({"draft": table.draft, "rows": {str(k): v for k, v in table.rows.items()}})
    else:
        print(f"draft        {table.draft:8.2f} ms")
        for rows, cost in table.rows.items():
            print(f"verify {rows:2d}    {cost:8.2f} ms")
    if out is not None:
        table.save(out)
