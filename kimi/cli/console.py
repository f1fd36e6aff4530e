"""What the commands share: progress on stderr, results on stdout."""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

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
    print(json.dumps(value, ensure_ascii=False))


def show_warnings_as_lines() -> None:
    """Warnings as `warning: text`, without source lines; the user can do nothing with those."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        file: TextIO | None = None, line: str | None = None,
    ) -> None:  # fmt: skip
        print(f"warning: {message}", file=file or sys.stderr)

    warnings.showwarning = show
