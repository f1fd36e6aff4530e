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
    except KeyboardInterrupt:
        return process.conclude(interrupted)
    except (KimiError, OSError) as e:
        if process.is_interrupted():  # the error of a child or a file that Ctrl-C has ended
            return process.conclude(interrupted)
        if isinstance(e, OSError) and e.filename is None:
            if e.errno == errno.ENOENT:  # of `os.getcwd`
                return _fail("current folder: expected it to exist, found it removed")
            if e.errno not in _OUTPUT_ERRORS:
                raise
            return _lost(e)
        if verbose:
            traceback.print_exc()
        code = _fail(str(e) if isinstance(e, KimiError) else f"{e.filename}: {e.strerror}")
    except Exception:
        if process.is_interrupted():
            return process.conclude(interrupted)
        raise
    return _flush() or code


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
