"""Command line: parses, runs one command, and turns every expected error into one line."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import kimi
from kimi.cli.cluster import join_cluster
from kimi.cli.console import show_warnings_as_lines
from kimi.errors import KimiError
from kimi.startup import CACHE_DIR, cache_folder

# name -> help. Each is a module of this package with `add_options` and `run`, imported only when
# it is asked for: jax alone takes seconds.
COMMANDS = {
    "generate": "decode a prompt, streaming the text",
    "chat": "talk to the model, a line a turn",
    "inspect": "show a checkpoint's config, tensors, sizes and problems",
    "logits": "write the float32 logits [T, vocab] of token ids",
    "costs": "measure this machine's draft and verify times",
    "preshard": "write the weights as the ranks of a mesh hold them, or verify such a store",
    "bench-load": "measure how fast this machine reads, re-encodes, lays out and places weights",
    "bench-start": "measure the time to the first word, of a first run and of one after it",
    "benchmark": "measure drafted decoding against plain decoding",
    "doctor": "check devices, topology, versions, memory, model, disk and clocks before a run",
    "aot": "compile the decode kernel for TPU v7 without one, and predict its time",
}
BAD_INPUT, INTERRUPTED = 2, 130  # exit codes


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser, with the options of the command `chosen` only."""
    parser = argparse.ArgumentParser(
        prog="python -m kimi", epilog=_programs_kept(),
        description="Decodes Kimi K3; without --model, the small K3 shipped.",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"kimi-k3-tpu {kimi.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        subparser = commands.add_parser(name, help=text, description=text, epilog=_programs_kept())
        if name == chosen:
            module = importlib.import_module(f"kimi.cli.{name.replace('-', '_')}")
            module.add_options(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def _programs_kept() -> str:
    where = cache_folder() or "no folder"
    return (
        f"Compiled programs are kept in {where}. {CACHE_DIR} names another folder, or is off; "
        "JAX_COMPILATION_CACHE_DIR goes before it."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    args = build_parser(next((a for a in argv if a in COMMANDS), None)).parse_args(argv)
    show_warnings_as_lines()
    try:
        join_cluster()
        args.run(args)
        sys.stdout.flush()
    except KimiError as e:
        print(f"error: {e}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone; without this Python complains again while closing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
