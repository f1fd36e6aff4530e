"""`predict`: compiles the decode kernel for TPU v7 without one, and predicts its time."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from kimi.cli.console import print_json, working
from kimi.decoding.schedule import PREDICTED_TPU_COSTS, CostTable
from kimi.errors import InputError
from kimi.files import check_writable, write_text
from kimi.kernels.experts import ExpertFormat
from kimi.lab.commands.predict_prefill import run_prefill
from kimi.lab.commands.predict_tables import run_calibrate, run_end_to_end
from kimi.lab.predict.costs import JOINT, MODELS, models_from
from kimi.lab.predict.drawing import draw_svg, perfetto_json
from kimi.lab.predict.launch import Refused
from kimi.lab.predict.loops import LoopOptions, loop_memory
from kimi.lab.predict.report import (
    buffer_tables,
    comparison_fields,
    comparison_text,
    report_fields,
    report_text,
)
from kimi.lab.predict.shapes import CACHE_TOKENS
from kimi.lab.predict.steps import PredictedStep, layer_timeline, predict, row_costs
from kimi.lab.predict.subjects import StepOptions
from kimi.lab.predict.timeline import Timeline

_WRITERS: dict[str, Callable[[Timeline], str]] = {".svg": draw_svg, ".json": perfetto_json}


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    default = StepOptions()
    formats = [form.value for form in ExpertFormat]
    p.add_argument("--model", help="folder with a config.json (default: Kimi K3)")
    p.add_argument("--rows", type=int, default=default.rows, help="rows of a step, 1 to 8")
    p.add_argument(
        "--verify", action="store_true", help="rows are one sequence's, not one each of several"
    )
    p.add_argument("--experts", choices=formats, default=default.experts, help="their format")
    p.add_argument(
        "--context", type=int, metavar="TOKENS",
        help=f"before the step (default: {default.context}); with --prefill: in a full cache "
        f"(default: {CACHE_TOKENS})",
    )  # fmt: skip
    p.add_argument("--topology", default=default.topology, help="of the slice")
    p.add_argument("--compare", action="store_true", help="with the peer's order of work")
    p.add_argument(
        "--cost-model", default=JOINT.name, metavar="MODEL",
        help=f"of the central figures: {', '.join(MODELS)}, or a JSON file (default: {JOINT.name})",
    )  # fmt: skip
    p.add_argument("--timeline", metavar="FILE", help="picture (.svg) or Perfetto trace (.json)")
    p.add_argument("--layer", choices=("kda", "mla"), default="kda", help="of the timeline")
    p.add_argument(
        "--costs", metavar="FILE",
        help="with --verify: write the predicted cost of every number of rows, for `generate "
        "--verify adaptive --costs FILE`",
    )  # fmt: skip
    p.add_argument(
        "--loop", type=int, metavar="STEPS",
        help="the memory of a whole program of drafted steps instead, of the published model",
    )  # fmt: skip
    p.add_argument(
        "--prefill", type=int, metavar="TOKENS",
        help="a chunk of so many tokens of a prompt instead: memory, traffic and time; minutes",
    )  # fmt: skip
    p.add_argument(
        "--end-to-end", action="store_true",
        help="tokens a second of drafted decoding, greedy and sampled, beside the peer's; minutes",
    )  # fmt: skip
    p.add_argument(
        "--calibrate", action="store_true",
        help="what was measured in public beside the cost models' figures for replicas of it",
    )  # fmt: skip
    p.add_argument("--record", action="store_true", help="with --calibrate: compile them anew")
    p.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    if args.record and not args.calibrate:
        raise InputError("--record: expected --calibrate with it")
    if args.calibrate:
        return run_calibrate(args)
    if args.end_to_end:
        return run_end_to_end(args)
    if args.prefill is not None:
        return run_prefill(args)
    if args.context is None:
        args.context = StepOptions.context
    if args.loop is not None:
        return _run_loop(args)
    models = models_from(args.cost_model)
    target = _timeline_file(args.timeline) if args.timeline else None
    costs = check_writable(args.costs) if args.costs else None
    if costs and (not args.verify or args.rows < 2):
        raise InputError("--costs: expected --verify and at least 2 --rows")
    options = StepOptions(
        rows=args.rows,
        block=args.verify,
        experts=args.experts,
        context=args.context,
        topology=args.topology,
        model=args.model or "",
    )
    try:
        with working("compiling and timing"):
            step = predict(options, args.compare, models)
    except Refused as refused:
        print(buffer_tables(refused), file=sys.stderr)
        raise
    try:
        _print(step, args.json)
    finally:
        if costs:
            with working("timing fewer rows"):
                rows = row_costs(step, options)
            CostTable(PREDICTED_TPU_COSTS.draft, rows).save(costs)
        if target:
            with working("recording a layer"):
                timeline = layer_timeline(step, mla=args.layer == "mla")
            write_text(target, _WRITERS[target.suffix](timeline))


def _print(step: PredictedStep, as_json: bool) -> None:
    compared = step.comparison
    if as_json:
        fields = report_fields(step.report)
        print_json(fields | ({"comparison": comparison_fields(compared)} if compared else {}))
        return
    print(report_text(step.report), end="")
    if compared:
        print(f"\n{comparison_text(compared)}", end="")


def _run_loop(args: argparse.Namespace) -> None:
    if args.loop < 1:
        raise InputError(f"--loop: expected at least 1 step, found {args.loop}")
    if args.model or args.compare or args.timeline or args.costs:
        raise InputError("--loop: expected no --model, --compare, --timeline or --costs with it")
    options = LoopOptions(args.loop, args.context, experts=args.experts, topology=args.topology)
    with working("compiling"):
        found = loop_memory(options)
    if args.json:
        print_json(asdict(found))
        return
    rows = [
        *found.arguments.items(),
        ("donated", found.donated),
        ("temporaries", found.temporaries),
    ]
    print(f"{options.steps} drafted steps, context {options.context}, {options.experts} experts\n")
    print("\n".join(f"{name:12s} {size / 1e6:12.3f} MB" for name, size in rows))


def _timeline_file(name: str) -> Path:
    file = check_writable(name)
    if file.suffix not in _WRITERS:
        raise InputError(
            f"--timeline: expected a file that ends in {' or '.join(_WRITERS)}, found {name}"
        )
    return file
