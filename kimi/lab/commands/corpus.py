"""`corpus`: makes the prose that the small K3 is trained on from Debian packages."""

import argparse
from pathlib import Path

from kimi.lab.train.corpus import PROSE_FILE, build


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--out", type=Path, required=True, help="directory to write into")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    prose = build(args.out)
    path = args.out / PROSE_FILE
    print(f"{path}: {len(prose.train):,} training and {len(prose.val):,} held-out tokens")
