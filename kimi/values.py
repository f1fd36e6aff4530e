"""Checks of arguments: each function returns the value as a plain Python type.

NumPy and JAX scalars are accepted; bools and strings of digits are not numbers.
"""

import os
import re
from collections.abc import Sequence
from typing import Any

from kimi.errors import InputError, KimiError

_MAX_INT = 2**63 - 1
SURROGATE = re.compile("[\ud800-\udfff]")


def shown(value: object) -> str:
    """The repr of a value for messages: one line, at most 80 characters."""
    try:
        text = " ".join(repr(value).split())
    except (ValueError, RecursionError):  # thousands of digits, or nested too deeply
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def integer(
    name: str, value: object, low: int = 0, high: int | None = None,
    error: type[KimiError] = InputError,
) -> int:  # fmt: skip
    """An integer from `low` to `high`, inclusive; at most 2^63 - 1. Raises `error`."""
    plain = _plain(value)
    if type(plain) is not int:
        raise error(f"{name}: expected an integer, found {shown(value)}")
    if not low <= plain <= (_MAX_INT if high is None else high):
        expected = f"at least {low}" if high is None else f"an integer from {low} to {high}"
        if plain > _MAX_INT:
            expected = "an integer of 64 bits"
        raise error(f"{name}: expected {expected}, found {shown(value)}")
    return plain


def number(name: str, value: object, error: type[KimiError] = InputError) -> float:
    """A number, which may be NaN or infinite. Raises `error`."""
    plain = _plain(value)
    if type(plain) is int:
        try:
            return float(plain)
        except OverflowError:
            return float("inf") if plain > 0 else float("-inf")
    if not isinstance(plain, float):
        raise error(f"{name}: expected a number, found {shown(value)}")
    return float(plain)


def flag(name: str, value: object) -> bool:
    """True or False. Raises InputError."""
    plain = _plain(value)
    if type(plain) is not bool:
        raise InputError(f"{name}: expected True or False, found {shown(value)}")
    return plain


def text(name: str, value: object) -> str:
    """A string without lone surrogates, which UTF-8 cannot encode. Raises InputError."""
    if not isinstance(value, str):
        raise InputError(f"{name}: expected a text, found {shown(value)}")
    if lone := SURROGATE.search(value):
        raise InputError(
            f"{name}: character {lone.start()} is the lone surrogate U+{ord(lone[0]):04X}; "
            "expected valid Unicode"
        )
    return value


def path(name: str, value: object) -> str:
    """A path or a hub id, as a string. Raises InputError."""
    plain = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(plain, str) or not plain or set(plain) & set("\0\n\r"):
        raise InputError(f"{name}: expected a path or a hub id, found {shown(value)}")
    return plain


def choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises InputError unless the value is one of the strings."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name}: expected one of {', '.join(choices)}, found {shown(value)}")


def _plain(value: Any) -> Any:
    """Converts a scalar of an array library; returns anything else unchanged."""
    return value.item() if getattr(value, "shape", None) == () else value
