"""Checks of single values that callers pass: each returns the value as its plain Python type.

NumPy and JAX scalars pass as what they hold; bools and texts of digits are no numbers.
"""

import os
from collections.abc import Sequence
from typing import Any

from kimi.errors import InputError

_WIDEST = 2**63 - 1


def shown(value: object) -> str:
    """A value as messages show it: on one line, at most 80 characters."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # thousands of digits, or nested without an end
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def integer(name: str, value: object, low: int = 0, high: int | None = None) -> int:
    """An integer from `low` to `high`, both allowed; at most 2^63 - 1. Raises InputError."""
    plain = _plain(value)
    if type(plain) is not int:
        raise InputError(f"{name}: expected an integer, found {shown(value)}")
    if not low <= plain <= (_WIDEST if high is None else high):
        expected = f"at least {low}" if high is None else f"an integer from {low} to {high}"
        if plain > _WIDEST:
            expected = "an integer of 64 bits"
        raise InputError(f"{name}: expected {expected}, found {shown(value)}")
    return plain


def number(name: str, value: object) -> float:
    """A number, which may be NaN or infinite. Raises InputError."""
    plain = _plain(value)
    if type(plain) is int:
        try:
            return float(plain)
        except OverflowError:
            return float("inf") if plain > 0 else float("-inf")
    if not isinstance(plain, float):
        raise InputError(f"{name}: expected a number, found {shown(value)}")
    return float(plain)


def flag(name: str, value: object) -> bool:
    """True or False. Raises InputError."""
    plain = _plain(value)
    if type(plain) is not bool:
        raise InputError(f"{name}: expected True or False, found {shown(value)}")
    return plain


def text(name: str, value: object) -> str:
    """A text. Raises InputError."""
    if not isinstance(value, str):
        raise InputError(f"{name}: expected a text, found {shown(value)}")
    return value


def path(name: str, value: object) -> str:
    """A path or a hub id, as a text. Raises InputError."""
    found = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(found, str) or not found or set(found) & set("\0\n\r"):
        raise InputError(f"{name}: expected a path or a hub id, found {shown(value)}")
    return found


def choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises InputError unless the value is one of the texts."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name}: expected one of {', '.join(choices)}, found {shown(value)}")


def _plain(value: Any) -> Any:
    """A scalar of an array library as Python's own; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value
