"""What `generate` and `chat` share: how an answer is asked for, and how it went."""

import argparse
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from kimi.conversation import THINKING
from kimi.decoding.sampling import Sampling
from kimi.decoding.stats import Stats
from kimi.text import StopStrings
from kimi.values import integer

_COMPILES = "/jax/core/compile/backend_compile_duration"  # jax tells the start and end of each
_PATIENCE_SECONDS = 1.0  # a program is read from the cache in less


def add_answer_options(p: argparse.ArgumentParser) -> None:
    """Options of an answer."""
    p.add_argument("--system", help="system message of a chat")
    p.add_argument("--thinking", choices=THINKING, help="thinking effort of a chat (default: off)")
    p.add_argument(
        "--max-tokens", type=int, default=256, help="of an answer, at most (default: %(default)s)"
    )
    p.add_argument(
        "--stop", action="append", default=[], metavar="TEXT",
        help="ends an answer before this text; may be given several times (default: none)",
    )  # fmt: skip
    p.add_argument(
        "--temperature", type=float, default=0.0,
        help="of sampling; 0 takes the most probable token (default: 0)",
    )  # fmt: skip
    p.add_argument(
        "--top-p", type=float,
        help="sample from the most probable tokens of this share together (default: 1, all)",
    )  # fmt: skip
    p.add_argument("--top-k", type=int, help="sample from so many tokens at most (default: 0, all)")
    p.add_argument("--seed", type=int, help="repeats a sampled answer (default: 0)")


def answer_options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `Engine.generate` and `Chat.say`, checked before anything is loaded.

    Raises:
      InputError: a value out of range.
    """
    drawn = {"top_p": args.top_p, "top_k": args.top_k, "seed": args.seed}
    drawn = {name: value for name, value in drawn.items() if value is not None}
    sampling = Sampling(temperature=args.temperature, **drawn)
    if sampling.greedy and drawn:
        named = ", ".join("--" + name.replace("_", "-") for name in drawn)
        warnings.warn(
            f"{named}: without effect at --temperature 0, which draws nothing", stacklevel=1
        )
    StopStrings(args.stop)
    return {
        "sampling": sampling,
        "max_tokens": integer("max tokens", args.max_tokens, 1),
        "stop": args.stop,
    }


@contextmanager
def compiling_told() -> Iterator[None]:
    """Says on stderr, once, that programs are being compiled, if one takes a while."""
    kept = " (once: the programs are kept)" if jax.config.jax_compilation_cache_dir else ""
    told, timer = threading.Event(), threading.Timer(0, lambda: None)

    def tell() -> None:
        told.set()
        print(f"compiling{kept} ...", file=sys.stderr, flush=True)

    def begins(event: str, value: float | int, **_: str | int) -> None:
        nonlocal timer
        if event == _COMPILES and not told.is_set():
            timer = threading.Timer(_PATIENCE_SECONDS, tell)
            timer.daemon = True
            timer.start()

    def ends(event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILES:
            timer.cancel()

    jax.monitoring.register_scalar_listener(begins)
    jax.monitoring.register_event_duration_secs_listener(ends)
    try:
        yield
    finally:
        timer.cancel()
        jax.monitoring.unregister_scalar_listener(begins)
        jax.monitoring.unregister_event_duration_listener(ends)


def brief(stats: Stats) -> str:
    """How an answer went, in a line."""
    compiled = (
        f" (compiling, {stats.compile_seconds:.1f} s, apart)" if stats.compile_seconds else ""
    )
    read = stats.prompt_tokens - stats.cached_tokens
    return (
        f"[{stats.tokens} tokens, {stats.tokens_per_second:.1f}/s; first after "
        f"{stats.first_token_seconds:.2f} s{compiled}; read {read} of {stats.prompt_tokens}]"
    )
