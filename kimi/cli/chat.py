"""`chat`: a conversation at the terminal, a line a turn."""

import argparse
import sys

from kimi.cli.console import working
from kimi.cli.generate import THINKING, add_model_options, open_engine
from kimi.errors import InputError

PROMPT = "> "


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model_options(p)
    p.add_argument("--context", type=int, default=2048, help="tokens of the whole conversation")
    p.add_argument("--max-tokens", type=int, default=256, help="of an answer")
    p.add_argument("--system", help="system message")
    p.add_argument("--thinking", choices=THINKING, default="off", help="thinking effort")
    p.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    p.add_argument("--top-p", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> None:
    """Runs the command: until the input ends. A line that cannot be answered is told, and left."""
    with working("loading the model"):
        engine = open_engine(args, draft=True)
    chat = engine.chat(args.context, system=args.system, thinking=args.thinking)
    asks = sys.stdin.isatty()
    while line := _read(asks):
        if not line.strip():
            continue
        try:
            answer = chat.say(
                line.strip(), args.max_tokens, temperature=args.temperature, top_p=args.top_p,
                seed=args.seed,
            )  # fmt: skip
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            continue
        for text in answer:
            print(text, end="", flush=True)
        print()
        s = answer.stats
        print(
            f"[{s.tokens} tokens, {s.tokens_per_second:.1f}/s; first after "
            f"{s.first_token_seconds:.2f} s; read {s.prompt_tokens - s.cached_tokens} of "
            f"{s.prompt_tokens}]",
            file=sys.stderr,
        )


def _read(asks: bool) -> str:
    """A line with its end; empty behind the last one."""
    if asks:
        print(PROMPT, end="", flush=True)
    return sys.stdin.readline()
