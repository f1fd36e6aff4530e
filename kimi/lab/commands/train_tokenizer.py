"""`train-tokenizer`: makes the small K3's vocabulary."""

import argparse
from pathlib import Path

from kimi.lab.train.tokenizer_training import RANKS, train, training_texts, write


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--corpus", type=Path, required=True, help="what `corpus` wrote")
    p.add_argument("--out", type=Path, required=True, help="directory to write into")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    write(args.out, train(training_texts(args.corpus), RANKS))
    print(f"{args.out}: {RANKS:,} ranks and 256 control ids")
