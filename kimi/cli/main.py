"""The command line: parses it, and runs one command with one-line errors."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import shtab

import kimi
from kimi.aliases import ALIASES, run_alias
from kimi.cli.cluster import join_cluster
from kimi.cli.options import Parser
from kimi.cli.program import run_program
from kimi.startup import CACHE_DIR, cache_folder


@dataclass(frozen=True)
class Program:
    """A program with commands.

    Attributes:
      name: how it is called.
      description: for its help.
      package: of its commands, modules with `add_options` and `run`. Only the chosen one is
        imported, as importing jax takes seconds.
      commands: name -> help.
    """

    name: str
    description: str
    package: str
    commands: Mapping[str, str]


COMMANDS = {
    "generate": "decode a prompt, streaming the text",
    "chat": "talk to the model, a line a turn",
    "inspect": "show a checkpoint's config, tensors, sizes and problems",
    "logits": "write the float32 logits [T, vocab] of token ids",
    "costs": "measure this machine's draft and verify times",
    "preshard": "write the weights as the ranks of a mesh hold them, or verify such a store",
    "benchmark": "measure drafted decoding against plain decoding",
    "doctor": "check devices, topology, versions, memory, model, disk and clocks before a run",
}
SCRIPT = "kimi-k3"
PROGRAM = Program(
    "python -m kimi",
    "Decodes Kimi K3; without --model, the small K3 shipped.",
    "kimi.cli",
    COMMANDS,
)


def build_parser(program: Program, *chosen: str, prog: str = SCRIPT) -> Parser:
    """The parser, with the options of the `chosen` commands only."""
    epilog = (
        f"Compiled programs are kept in {cache_folder() or 'no folder'}. {CACHE_DIR} names another "
        "folder, or is off; JAX_COMPILATION_CACHE_DIR takes precedence."
    )
    parser = Parser(prog=prog, epilog=epilog, description=program.description)
    parser.add_argument("--version", action="version", version=f"kimi-k3-tpu {kimi.__version__}")
    parser.add_argument(
        "--completion", choices=shtab.SUPPORTED_SHELLS,
        help=f"print what this shell needs for completion of {SCRIPT}, instead of a command",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in program.commands.items():
        subparser = commands.add_parser(name, help=text, description=text, epilog=epilog)
        if name in chosen:
            module = importlib.import_module(f"{program.package}.{name.replace('-', '_')}")
            module.add_options(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and (alias := f"kimi {argv[0]}") in ALIASES:
        return run_alias(alias, argv[1:])
    started = Path(sys.argv[0]).stem == SCRIPT
    return run_commands(PROGRAM, argv, SCRIPT if started else PROGRAM.name)


def run_commands(program: Program, argv: Sequence[str] | None = None, prog: str = "") -> int:
    """Runs a command line of a program; returns the exit code.

    Args:
      argv: default that of the process.
      prog: how the program was called, default its name.
    """
    argv = sys.argv[1:] if argv is None else argv
    chosen = [a for a in argv if a in program.commands][:1]
    parser = build_parser(program, *chosen, prog=prog or program.name)
    args = parser.parse_args(argv)

    def body() -> int | None:
        if args.completion:
            print(shtab.complete(build_parser(program, *program.commands), args.completion))
        elif args.command is None:
            parser.error(f"COMMAND: expected one of {', '.join(program.commands)}, found none")
        else:
            join_cluster()
            code: int | None = args.run(args)
            return code
        return None

    return run_program(body, args.verbose)
