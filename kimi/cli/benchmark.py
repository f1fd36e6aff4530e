"""`benchmark`: drafted decoding against plain decoding, in one run."""

import argparse
import math
import warnings
from pathlib import Path
from typing import Any

import jax

from kimi.api import Engine
from kimi.benchmark import figures, report
from kimi.benchmark.measure import Outcome, make_decoder, measure, step_costs
from kimi.benchmark.plot import check_plot, save_plot
from kimi.benchmark.prompts import DEFAULT_REQUESTS, Prompts, built_in, from_file, random_tokens
from kimi.benchmark.system import describe
from kimi.cli.cluster import join_platform
from kimi.cli.console import counting, print_json, working
from kimi.cli.generate import add_model_options, open_engine
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import CostTable
from kimi.errors import InputError
from kimi.files import check_writable, write_json
from kimi.models import capacity_for
from kimi.startup import find_devices

_STEPS_PER_CALL = 8
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
        help=f"of the kernel's device loop (default {_STEPS_PER_CALL}); the reference takes one",
    )  # fmt: skip
    p.add_argument(
        "--verify", choices=("fixed", "adaptive"), default="fixed",
        help="always --rows, or by confidence and the costs measured first",
    )  # fmt: skip
    p.add_argument("--rows", type=int, help="rows of --verify fixed (default: the whole block)")
    p.add_argument(
        "--forced-acceptance", type=float, metavar="LENGTH",
        help="SYNTHETIC: pretend that steps yield LENGTH tokens on average, 1 to the rows "
        "verified; kernel only; stop ids then end nothing",
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
    _settle(args, engine)
    prompts = _prompts(args, engine)
    needed = max(map(len, prompts.ids)) + args.max_tokens
    if args.context is not None and args.context < needed:
        raise InputError(
            f"--context: expected at least {needed} (the longest prompt and --max-tokens), "
            f"found {args.context}"
        )
    steps = args.steps_per_call
    decoder = make_decoder(engine, args.context or needed, steps, args.forced_acceptance or 0.0)
    for ids in prompts.ids:
        decoder.check_prompt(ids, args.max_tokens)
    with working("compiling"):
        rows = args.rows if args.verify == "fixed" else None
        costs = step_costs(decoder, prompts.ids[0], engine.block_size, rows)
        adaptive = costs if args.verify == "adaptive" else None
        schedule = engine.schedule(args.verify, args.rows, adaptive)
        assert schedule is not None
        for ids in {len(ids): ids for ids in prompts.ids}.values():
            decoder.warm_up(ids, Sampling(), schedule)
            decoder.warm_up(ids, Sampling(), None)
    text = prompts.text and args.forced_acceptance is None
    stop_ids = engine.tokenizer.stop_ids if text else frozenset()
    with counting("requests", len(prompts.ids)) as advance:
        outcome = measure(decoder, prompts.ids, args.max_tokens, schedule, stop_ids, advance)
    if first and outcome.pairs:
        _write(args, _report(args, engine, prompts, decoder.capacity, costs, outcome))
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


def _settle(args: argparse.Namespace, engine: Engine) -> None:
    """Checks and fills in what depends on the model and its backend."""
    engine.schedule(args.verify, args.rows)
    if args.verify == "fixed" and args.rows is None:
        args.rows = engine.block_size
    kernel = engine.backend == "kernel"
    if jax.process_count() > 1 and not kernel:
        raise InputError(
            f"--backend: expected the kernel on {jax.process_count()} hosts, found the reference"
        )
    forced, most = args.forced_acceptance, args.rows or engine.block_size
    if forced is not None and not kernel:
        raise InputError("--forced-acceptance: expected --backend kernel, found the reference")
    if forced is not None and forced > most:
        raise InputError(
            f"--forced-acceptance: expected at most {most} (rows verified), found {forced}"
        )
    if not kernel and args.steps_per_call not in (None, 1):
        warnings.warn(
            f"--steps-per-call {args.steps_per_call}: the reference returns after every step",
            stacklevel=1,
        )
    args.steps_per_call = (args.steps_per_call or _STEPS_PER_CALL) if kernel else 1


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
