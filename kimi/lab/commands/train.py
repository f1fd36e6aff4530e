"""`train`: makes the small K3; after an interruption the same command goes on where it was."""

import argparse
from pathlib import Path

from kimi.errors import InputError
from kimi.lab.train.pipeline import STEPS, run_all
from kimi.lab.train.recipe import FULL, SMOKE
from kimi.lab.train.run import run_in


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--out", type=Path, required=True, help="directory of the run")
    p.add_argument("--corpus", type=Path, required=True, help="what `corpus` wrote")
    p.add_argument("--smoke", action="store_true", help="a model of nothing, in seconds")
    p.add_argument("--only", choices=tuple(STEPS), help="this step, whether it is done or not")
    p.add_argument("--seconds", type=float, help="of training, with --only target or drafter")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    recipe = SMOKE if args.smoke else FULL
    if args.seconds is not None:
        if args.only not in ("target", "drafter"):
            raise InputError("--seconds: expected --only target or --only drafter with it")
        recipe = recipe.lasting(args.only, args.seconds)
    made = run_in(args.out, args.corpus, recipe)
    if args.only:
        STEPS[args.only][1](made)
    else:
        run_all(made)
