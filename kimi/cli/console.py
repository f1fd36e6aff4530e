"""Shared by the commands: text from stdin, progress on stderr, results on stdout."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TimeElapsedColumn

from kimi.errors import InputError
from kimi.files import json_text

stderr = Console(stderr=True)


def progress_bar(*columns: ProgressColumn | str) -> Progress:
    """Progress on stderr, only on a terminal; removed when it ends."""
    return Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner with the elapsed time, while work of unknown length runs."""
    with progress_bar(SpinnerColumn(), "{task.description}", TimeElapsedColumn()) as progress:
        progress.add_task(what, total=None)
        yield


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar; call the function yielded once for each of `total` items done."""
    columns = "{task.description}", BarColumn(), "{task.completed}/{task.total}"
    with progress_bar(*columns, TimeElapsedColumn()) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def print_json(value: Any) -> None:
    """Prints one line of JSON on stdout."""
    print(json_text(value))


def read_text() -> str:
    """All of standard input. Raises InputError if it is closed or not UTF-8."""
    return _decode(_stdin().read())


def read_line() -> str:
    """The next line of standard input with its line end; empty after the last one.

    Raises InputError if it is closed, or the line is not UTF-8; later lines can still be read.
    """
    return _decode(_stdin().readline())


def _stdin() -> IO[Any]:
    if sys.stdin is None:
        raise InputError("standard input: expected text, found it closed")
    # Bytes: after an error, a text stream loses the lines that its decoder has read ahead.
    return getattr(sys.stdin, "buffer", sys.stdin)


def _decode(data: bytes | str) -> str:
    """Decodes UTF-8; drops a byte-order mark, and CR before LF."""
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise InputError(f"standard input: {utf8_error(e)}") from None
    return text.replace("\r\n", "\n")


def utf8_error(error: UnicodeDecodeError) -> str:
    """Names the byte that is not UTF-8."""
    byte = error.object[error.start]
    return f"expected UTF-8, found byte 0x{byte:02x} at position {error.start}"


def show_warnings_as_lines() -> None:
    """Shows warnings as `warning: text`, without source lines."""

    def show(message: Warning | str, *unused: Any, **options: Any) -> None:
        print(f"warning: {message}", file=sys.stderr)

    warnings.showwarning = show
