"""Runs the body of a program: one-line errors, and exit codes."""

import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable

from kimi import process
from kimi.cli.cluster import leave_cluster
from kimi.cli.console import show_warnings_as_lines
from kimi.errors import KimiError

OUTPUT_LOST, BAD_INPUT = 1, 2  # exit codes
# Of errors without a file name, which are of standard output: see `kimi.files` for result files.
_OUTPUT_ERRORS = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def run_program(
    body: Callable[[], int | None], verbose: bool = False, interrupted: str = "interrupted"
) -> int:
    """Runs `body`; returns the exit code that it returns, or that of its error.

    If several hosts run one program, a host that fails does not wait for the others.

    Args:
      verbose: show where warnings and errors come from.
      interrupted: the line to print after Ctrl-C.
    """
    code = _run(body, verbose, interrupted)
    return leave_cluster(code) if code else 0


def _run(body: Callable[[], int | None], verbose: bool, interrupted: str) -> int:
    if sys.stdout is None:
        return _fail("standard output: expected it open, found it closed")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # for encodings that lack a character
    if verbose:
        logging.basicConfig(level=logging.INFO)
    else:
        show_warnings_as_lines()
    try:
        code = body() or 0
    except (Exception, KeyboardInterrupt) as error:
        # Ctrl-C also ends children and the reading of files, with errors of their own.
        if isinstance(error, KeyboardInterrupt) or process.is_interrupted():
            return process.conclude(interrupted)
        code = _report(error, verbose)
    return _flush() or code


def _report(error: Exception, verbose: bool) -> int:
    """Prints an expected error and returns the exit code; raises any other."""
    if isinstance(error, OSError) and error.filename is None:
        if error.errno == errno.ENOENT:  # of `os.getcwd`
            return _fail("current folder: expected it to exist, found it removed")
        if error.errno in _OUTPUT_ERRORS:
            return _lost(error)
        raise error
    if not isinstance(error, KimiError | OSError):
        raise error
    if verbose:
        traceback.print_exc()
    return _fail(
        str(error) if isinstance(error, KimiError) else f"{error.filename}: {error.strerror}"
    )


def _fail(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return BAD_INPUT


def _flush() -> int:
    """Flushes standard output; the exit code if it cannot be written, else 0."""
    try:
        sys.stdout.flush()
    except OSError as e:
        return _lost(e)
    return 0


def _lost(error: OSError) -> int:
    if not isinstance(error, BrokenPipeError):  # the reader (head, less) has seen enough
        print(f"error: standard output: cannot be written: {error.strerror}", file=sys.stderr)
    # Otherwise Python reports the error again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OUTPUT_LOST
