"""`write-prompts`: writes the generated texts that are shipped."""

import argparse
import json
from pathlib import Path

from kimi.assets import GRADE_SCHOOL, PROMPTS, TINY_K3
from kimi.lab.train import grade_school, prompts


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--out", type=Path, default=TINY_K3, help="folder (default: where they lie)")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    for file, rows in ((GRADE_SCHOOL, grade_school.rows()), (PROMPTS, prompts.shipped_rows())):
        path = args.out / file.name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{path}: {len(rows)} lines")
