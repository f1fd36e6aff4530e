"""`predict --calibrate` and `--end-to-end`: tables of cost models and of the whole drafted loop."""

import argparse
import sys

from kimi.cli.console import print_json, working
from kimi.errors import InputError
from kimi.lab.predict.calibration import (
    calibrate,
    calibration_fields,
    calibration_text,
    read_traces,
    record,
    write_traces,
)
from kimi.lab.predict.costs import models_from
from kimi.lab.predict.end_to_end import end_to_end, end_to_end_fields, end_to_end_text
from kimi.lab.predict.launch import Refused
from kimi.lab.predict.loops import LoopOptions
from kimi.lab.predict.report import buffer_tables


def run_calibrate(args: argparse.Namespace) -> None:
    """Prints the calibration table; with `--record`, of replicas that are compiled anew.

    Raises:
      InputError: the cost model is not known.
    """
    models = models_from(args.cost_model)
    if args.record:
        with working("compiling the replicas: minutes"):
            write_traces(record())
    with working("timing the replicas"):
        rows = calibrate(read_traces(), models)
    if args.json:
        print_json(calibration_fields(rows, models))
    else:
        print(calibration_text(rows, models), end="")


def run_end_to_end(args: argparse.Namespace) -> None:
    """Prints the predicted speed of drafted decoding.

    Raises:
      InputError: options of another report beside it, or the cost model is not known.
    """
    if args.model or args.compare or args.timeline or args.costs or args.context is not None:
        raise InputError(
            "--end-to-end: expected no --model, --compare, --timeline, --costs or --context with it"
        )
    models = models_from(args.cost_model)
    options = LoopOptions(experts=args.experts, topology=args.topology)
    try:
        with working("compiling and timing the greedy and the sampling program: minutes"):
            programs = end_to_end(options, models)
    except Refused as refused:
        print(buffer_tables(refused), file=sys.stderr)
        raise
    if args.json:
        print_json(end_to_end_fields(programs))
    else:
        print(end_to_end_text(programs), end="")
