"""Command lines: a wrong one ends in one line, and every help says the default."""

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_SHOWN = 60  # characters of a wrong value
_LIMIT = 2**63  # what arrays and counters hold
_MAY_BE_EMPTY = ("prompt", "system")


class Parser(argparse.ArgumentParser):
    """A parser of options; so are those of its commands."""

    def __init__(self, **options: Any):
        super().__init__(formatter_class=_Help, **options)
        self.register("type", int, integer())
        self.add_argument(
            "-v", "--verbose", action="store_true", default=argparse.SUPPRESS,
            help="show where warnings and errors come from, and what libraries log",
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """Ends the program: one line, without the usage."""
        text = " ".join(message.removeprefix("argument ").split())
        self.exit(2, f"error: {text} (see {self.prog} --help)\n")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As of argparse; no name of a file, a folder or a model is empty."""
        found = super().parse_args(args, namespace)
        for name, value in vars(found).items():
            if value == "" and name not in _MAY_BE_EMPTY:
                self.error(f"--{name.replace('_', '-')}: expected a name, found ''")
        found.verbose = getattr(found, "verbose", False)
        return found


class _Help(argparse.HelpFormatter):
    """Adds defaults that the text does not speak of, except those that mean nothing is given."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        if "default" in text or action.default in (None, False, argparse.SUPPRESS):
            return text
        return f"{text} (default: %(default)s)".strip()


def integer(least: int | None = None) -> Callable[[str], int]:
    """The type of an option: a whole number, from `least` on."""

    def convert(text: str) -> int:
        wanted = "an integer" if least is None else f"an integer from {least}"
        if text.strip().removeprefix("-").isdecimal():
            value = int(text[:_SHOWN])
            if least is not None and value < least:
                pass
            elif len(text) < _SHOWN and abs(value) < _LIMIT:
                return value
            else:
                wanted += ", below 2**63"
        raise argparse.ArgumentTypeError(f"expected {wanted}, found {text[:_SHOWN]!r}")

    return convert


def number(above: float = 0.0) -> Callable[[str], float]:
    """The type of an option: a finite number above another."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value) and value > above:
            return value
        raise argparse.ArgumentTypeError(
            f"expected a number above {above:g}, found {text[:_SHOWN]!r}"
        )

    return convert
