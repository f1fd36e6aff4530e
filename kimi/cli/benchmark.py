"""`benchmark`: drafted decoding against plain decoding, in one run."""

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from kimi.api import Engine
from kimi.benchmark import figures, report
from kimi.benchmark.measure import Options, Outcome, decode, measure
from kimi.benchmark.plot import check_plot, save_plot
from kimi.benchmark.prompts import DEFAULT_REQUESTS, Prompts, built_in, from_file, random_tokens
from kimi.benchmark.system import describe
from kimi.cli.cluster import join_platform
from kimi.cli.console import counting, print_json, working
from kimi.cli.generate import add_model_options, open_engine
from kimi.decoding.checks import check_request
from kimi.decoding.schedule import Adaptive, CostTable, Fixed, Schedule
from kimi.errors import InputError
from kimi.files import check_writable, write_json
from kimi.models import capacity_for
from kimi.startup import find_devices

_MOST_REQUESTS = 100_000  # each is decoded twice, and kept


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model_options(p)
    source = p.add_mutually_exclusive_group()
    source.add_argument(
        "--prompts", type=Path, metavar="FILE",
        help='a prompt per line, or .jsonl with "prompt" or "ids" (default: built-in prompts)',
    )  # fmt: skip
    source.add_argument(
        "--random-tokens", type=int, metavar="N",
        help="prompts of N random ids; stop ids then end nothing",
    )  # fmt: skip
    p.add_argument(
        "--requests", type=int, help=f"how many prompts (default: all of FILE, {DEFAULT_REQUESTS})"
    )
    p.add_argument(
        "--max-tokens", "--output-length", type=int, default=128, help="tokens to generate at most"
    )
    p.add_argument("--context", type=int, help="room for tokens (default: what is needed)")
    p.add_argument(
        "--steps-per-call", type=int,
        help="of the device loop (default: 8 with the kernel, 1 with the reference)",
    )  # fmt: skip
    p.add_argument(
        "--verify", choices=("fixed", "adaptive"), default="fixed",
        help="always --rows, or by confidence and the costs measured first",
    )  # fmt: skip
    p.add_argument("--rows", type=int, help="rows of --verify fixed (default: the whole block)")
    p.add_argument(
        "--forced-acceptance", type=float, metavar="LENGTH",
        help="SYNTHETIC: pretend that steps yield LENGTH tokens on average, 1 to the rows "
        "verified; stop ids then end nothing",
    )  # fmt: skip
    p.add_argument("--out", help="JSON file of the report")
    p.add_argument("--plot", help="PNG or SVG of acceptance and speed")
    p.add_argument("--json", action="store_true", help="print the report as JSON, not as a table")
    p.add_argument(
        "--distributed", action="store_true",
        help="on a pod slice, where every host runs this command: join them; the first one prints",
    )  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    _check_numbers(args)
    if args.plot:
        check_plot(Path(args.plot))
    if args.distributed:
        join_platform()
    find_devices()
    first = jax.process_index() == 0
    if first:
        for path in filter(None, (args.out, args.plot)):
            check_writable(path)
    with working("loading the model"):
        engine = open_engine(args, True)
    engine = _settle(args, engine)
    prompts = _prompts(args, engine)
    needed = max(map(len, prompts.ids)) + args.max_tokens
    if args.context is not None and args.context < needed:
        raise InputError(
            f"--context: expected at least {needed} (the longest prompt and --max-tokens), "
            f"found {args.context}"
        )
    context = capacity_for(engine.config, args.context or needed)
    for ids in prompts.ids:
        check_request(ids, args.max_tokens, engine.config.vocab_size, context)
    text = prompts.text and args.forced_acceptance is None
    options = Options(args.max_tokens, context, stops=text)
    with working("compiling"):
        rows = {1, args.rows} if args.verify == "fixed" else None
        costs = engine.measure_costs(prompts.ids[0], rows=rows, context=context)
        verify: Schedule = Fixed(args.rows) if args.verify == "fixed" else Adaptive(costs)
        for ids in {len(ids): ids for ids in prompts.ids}.values():
            for way in (verify, "off"):
                decode(engine, ids, replace(options, max_tokens=1), way)
    with counting("requests", len(prompts.ids)) as advance:
        outcome = measure(engine, prompts.ids, options, verify, advance)
    if first and outcome.pairs:
        _write(args, _report(args, engine, prompts, context, costs, outcome))
    if outcome.interrupted:
        raise KeyboardInterrupt


def _check_numbers(args: argparse.Namespace) -> None:
    """What can be said before anything is loaded."""
    for name in ("requests", "max_tokens", "steps_per_call"):
        value = getattr(args, name)
        if value is not None and value < 1:
            option = "--" + name.replace("_", "-")
            raise InputError(f"{option}: expected at least 1, found {value}")
    if (args.requests or 0) > _MOST_REQUESTS:
        raise InputError(f"--requests: expected at most {_MOST_REQUESTS}, found {args.requests}")
    if args.rows is not None and args.verify != "fixed":
        raise InputError(f"--rows: expected --verify fixed, found --verify {args.verify}")
    forced = args.forced_acceptance
    if forced is not None and not (math.isfinite(forced) and forced >= 1):
        raise InputError(f"--forced-acceptance: expected a number from 1, found {forced}")


def _settle(args: argparse.Namespace, engine: Engine) -> Engine:
    """Checks and fills in what depends on the model; the engine with these options."""
    engine.schedule(args.verify if args.rows is None else Fixed(args.rows))
    if args.verify == "fixed" and args.rows is None:
        args.rows = engine.block_size
    if jax.process_count() > 1 and engine.backend != "kernel":
        raise InputError(
            f"--backend: expected the kernel on {jax.process_count()} hosts, found the reference"
        )
    forced, most = args.forced_acceptance, args.rows or engine.block_size
    if forced is not None and forced > most:
        raise InputError(
            f"--forced-acceptance: expected at most {most} (rows verified), found {forced}"
        )
    args.steps_per_call = args.steps_per_call or engine.model.runner.steps_per_call
    return replace(engine, steps_per_call=args.steps_per_call, forced_acceptance=forced or 0.0)


def _prompts(args: argparse.Namespace, engine: Engine) -> Prompts:
    if args.prompts is not None:
        return from_file(engine, args.prompts, args.requests)
    requests = args.requests or DEFAULT_REQUESTS
    if args.random_tokens is not None:
        capacity_for(engine.config, args.random_tokens + args.max_tokens)
        return random_tokens(engine, args.random_tokens, requests)
    return built_in(engine, requests)


def _report(
    args: argparse.Namespace, engine: Engine, prompts: Prompts, context: int, costs: CostTable,
    outcome: Outcome,
) -> report.Report:  # fmt: skip
    kernel = engine.backend == "kernel"
    found: dict[str, Any] = {
        "partial": outcome.interrupted,
        "system": describe(),
        "model": {
            "path": str(engine.model.path),
            "layers": engine.config.num_hidden_layers,
            "block_size": engine.block_size,
        },
        "options": {
            "backend": engine.backend,
            "experts": args.experts if kernel else None,
            "dtype": None if kernel else args.dtype,
            "prompts": prompts.source,
            "requests": len(prompts.ids),
            "max_tokens": args.max_tokens,
            "context": context,
            "steps_per_call": args.steps_per_call,
            "verify": args.verify,
            "rows": args.rows,
            "forced_acceptance": args.forced_acceptance,
        },
        **figures.of_pairs(outcome.pairs, costs),
    }
    return report.mark(found) if args.forced_acceptance is not None else found


def _write(args: argparse.Namespace, found: report.Report) -> None:
    try:
        if args.json:
            print_json(found)
        else:
            print("\n".join(report.lines(found)), flush=True)
    finally:
        if args.out:
            write_json(args.out, found)
        if args.plot:
            save_plot(found, Path(args.plot))
