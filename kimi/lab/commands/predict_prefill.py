"""`predict --prefill`: compiles a chunk of a prompt for TPU v7 without one; predicts its time."""

import argparse
import sys

from kimi.cli.console import print_json, working
from kimi.errors import InputError
from kimi.kernels.chip import TPU_V7
from kimi.lab.predict.costs import models_from
from kimi.lab.predict.launch import Refused
from kimi.lab.predict.prompt_report import prompt_fields, prompt_text
from kimi.lab.predict.prompt_steps import predict_prompt
from kimi.lab.predict.prompts import ChunkOptions
from kimi.lab.predict.report import buffer_tables
from kimi.lab.predict.shapes import CACHE_TOKENS


def run_prefill(args: argparse.Namespace) -> None:
    """Runs the command.

    Raises:
      InputError: options of a decode step beside it, or the chunk does not fit HBM.
    """
    if args.verify or args.compare or args.timeline or args.costs or args.loop is not None:
        raise InputError(
            "--prefill: expected no --verify, --compare, --timeline, --costs or --loop with it"
        )
    options = ChunkOptions(
        tokens=args.prefill,
        experts=args.experts,
        context=CACHE_TOKENS if args.context is None else args.context,
        topology=args.topology,
        model=args.model or "",
    )
    models = models_from(args.cost_model)
    try:
        with working("compiling and timing a chunk of a prompt: minutes"):
            report = predict_prompt(options, models)
    except Refused as refused:
        print(buffer_tables(refused), file=sys.stderr)
        raise
    if args.json:
        print_json(prompt_fields(report))
    else:
        print(prompt_text(report), end="")
    if not report.fits:
        raise InputError(
            f"HBM of a core: expected at most {TPU_V7.hbm_bytes} bytes for {options.title}, found "
            f"{report.hbm_bytes}"
        )
