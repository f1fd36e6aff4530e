"""What the commands share: text from stdin, progress on stderr, results on stdout."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from kimi.errors import InputError
from kimi.files import json_text

stderr = Console(stderr=True)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner with the time elapsed, while something of unknown length goes on.

    Shown only on a terminal, and gone when it ends.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=stderr, transient=True, disable=not stderr.is_terminal
    ) as progress:
        progress.add_task(what, total=None)
        yield


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal; call what it gives once for each of `total` things done."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(
        *columns, console=stderr, transient=True, disable=not stderr.is_terminal
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def print_json(value: Any) -> None:
    """One line of JSON on stdout."""
    print(json_text(value))


def read_text() -> str:
    """All of standard input. Raises InputError if it is closed or not UTF-8."""
    return _decode(_stdin().read())


def read_line() -> str:
    """The next line of standard input with its end; empty behind the last one.

    Raises:
      InputError: it is closed, or the line is not UTF-8; the lines behind it can still be read.
    """
    return _decode(_stdin().readline())


def _stdin() -> IO[Any]:
    if sys.stdin is None:
        raise InputError("standard input: expected text, found it closed")
    # Bytes: a decoder that has met a wrong one loses the lines that it read ahead.
    return getattr(sys.stdin, "buffer", sys.stdin)


def _decode(data: bytes | str) -> str:
    """Always UTF-8; lines end in a newline alone, and a byte-order mark is no text."""
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise InputError(
            f"standard input: expected UTF-8, found byte 0x{e.object[e.start]:02x} at position "
            f"{e.start}"
        ) from None
    return text.replace("\r\n", "\n")


def show_warnings_as_lines() -> None:
    """Warnings as `warning: text`, without source lines; the user can do nothing with those."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        file: TextIO | None = None, line: str | None = None,
    ) -> None:  # fmt: skip
        print(f"warning: {message}", file=file or sys.stderr)

    warnings.showwarning = show
