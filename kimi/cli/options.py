"""Parsing of command lines: one-line errors, and every help text shows the default."""

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_SHOWN = 60  # characters of an invalid value
_LIMIT = 2**63  # of int64
_MAY_BE_EMPTY = ("prompt", "system")


class Parser(argparse.ArgumentParser):
    """A parser of options; its subparsers have this class too."""

    def __init__(self, **options: Any):
        super().__init__(formatter_class=_Help, **options)
        self.register("type", int, integer())
        self.add_argument(
            "-v", "--verbose", action="store_true", default=argparse.SUPPRESS,
            help="show where warnings and errors come from, and what libraries log",
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """Exits with a one-line error, without the usage."""
        text = " ".join(message.removeprefix("argument ").split())
        self.exit(2, f"error: {text} (see {self.prog} --help)\n")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As argparse does; refuses empty names of files, folders and models."""
        parsed = super().parse_args(args, namespace)
        for name, value in vars(parsed).items():
            if value == "" and name not in _MAY_BE_EMPTY:
                self.error(f"--{name.replace('_', '-')}: expected a name, found ''")
        parsed.verbose = getattr(parsed, "verbose", False)
        return parsed


class _Help(argparse.HelpFormatter):
    """Adds defaults that the text does not mention, except those that mean "not given"."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        if "default" in text or action.default in (None, False, argparse.SUPPRESS):
            return text
        return f"{text} (default: %(default)s)".strip()


def integer(least: int | None = None) -> Callable[[str], int]:
    """The type of an option: an integer, at least `least`."""

    def convert(text: str) -> int:
        expected = "an integer" if least is None else f"an integer from {least}"
        if text.strip().removeprefix("-").isdecimal():
            value = int(text[:_SHOWN])
            if least is None or value >= least:
                if len(text) < _SHOWN and abs(value) < _LIMIT:
                    return value
                expected += ", below 2**63"
        raise argparse.ArgumentTypeError(f"expected {expected}, found {text[:_SHOWN]!r}")

    return convert


def number(text: str) -> float:
    """The type of an option: a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if 0 < value < _LIMIT:
        return value
    expected = "a number above 0" + (", below 2**63" if 0 < value < math.inf else "")
    raise argparse.ArgumentTypeError(f"expected {expected}, found {text[:_SHOWN]!r}")
