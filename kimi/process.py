"""Ctrl-C at any moment, and closed standard streams, for programs (not for libraries).

The first Ctrl-C raises KeyboardInterrupt in the main thread, as usual in Python. That alone would
not end every program: a compiler returns to Python after minutes, and libraries, callbacks and
finalizers swallow exceptions. So a thread, woken by the signal itself, ends the process if it still
runs `GRACE_SECONDS` later; any other failure in between counts as the interruption. Imported before
anything else, this module imports only the standard library.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from kimi._version import __version__

GRACE_SECONDS = 1.0
_NUDGE_SECONDS = 0.1
INTERRUPTED = 130  # exit code
_HANDLED = b"\0"  # in the pipe into which CPython writes signal numbers
_SHOW_CURSOR = "\x1b[?25h"  # a progress bar may have hidden it


class _Interrupts:  # of this process, which has one handler per signal
    pending = False  # whether a Ctrl-C has not been handled yet
    pipe: int | None = None  # into which CPython writes signal numbers; None before `begin`
    stop: Callable[[], None] | None = None  # what Ctrl-C does instead of raising


_state = _Interrupts()


def begin() -> None:
    """Installs the handlers of a program; call before slow imports."""
    _open_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job of a shell
        return
    reading, _state.pipe = os.pipe()
    os.set_blocking(_state.pipe, False)
    signal.signal(signal.SIGINT, _on_interrupt)
    signal.set_wakeup_fd(_state.pipe, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    sys.excepthook, sys.unraisablehook, threading.excepthook = _uncaught, _swallowed, _in_thread


def handled() -> None:
    """Marks a caught KeyboardInterrupt as handled: the program resumes, or needs time to end."""
    _state.pending = False
    if _state.pipe is not None:
        os.write(_state.pipe, _HANDLED)


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """In the block a first Ctrl-C does not raise; the function yielded returns whether it came.

    The process still ends if control does not return to Python, as in a compiler.
    """
    came = threading.Event()

    def stop() -> None:
        _state.stop = None  # a second Ctrl-C ends the program
        came.set()
        handled()

    _state.stop = stop
    try:
        yield came.is_set
    finally:
        _state.stop = None


def conclude(line: str = "interrupted") -> int:
    """Prints `line` and ends the process; returns the exit code if `begin` was not called."""
    if _state.pipe is None:
        print(line, file=sys.stderr)
        return INTERRUPTED
    handled()  # silences the watching thread
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    _end(line)
    raise AssertionError("unreachable")


def is_interrupted() -> bool:
    """Whether a failure now is due to Ctrl-C."""
    return _state.pending


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    if _state.stop is not None:
        return _state.stop()
    _state.pending = True
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            conclude()  # extension modules abort the process if their imports raise
        frame = frame.f_back
    raise KeyboardInterrupt


def _watch(reading: int) -> None:
    while True:
        if os.read(reading, 1) != bytes([signal.SIGINT]):
            continue
        for seconds, act in ((_NUDGE_SECONDS, _nudge), (GRACE_SECONDS, _end)):
            while ready := select.select([reading], [], [], seconds)[0]:
                if os.read(reading, 1) == _HANDLED:
                    break
            if ready:
                break
            act()


def _nudge() -> None:
    """Wakes a line editor, which misses a signal just before it waits for a key; else harmless."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGWINCH)


def _end(line: str = "interrupted") -> None:
    with suppress(OSError):
        os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}{line}\n".encode())
    # Not by `sys.exit`: it waits for threads, and they for what they compute.
    os._exit(INTERRUPTED)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """In the main thread: expected errors have been caught, so this is a bug."""
    if _state.pending or issubclass(kind, KeyboardInterrupt):
        conclude()
    sys.__excepthook__(kind, error, trace)
    request = "please report the lines above, and the command"
    print(f"this is a bug in kimi-k3-tpu {__version__}: {request}", file=sys.stderr)


def _swallowed(failure: "sys.UnraisableHookArgs") -> None:
    """In a finalizer or a callback, from which no error propagates."""
    if _state.pending:
        conclude()
    sys.__unraisablehook__(failure)


def _in_thread(failure: Any) -> None:
    """Threads fail once the main thread has been interrupted; that is not worth a message."""
    if not _state.pending:
        threading.__excepthook__(failure)


def _forget() -> None:
    """In a forked child, whose pipe belongs to its parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _state.pipe = None


def _open_closed_streams() -> None:
    """Otherwise the next file opened would get the number of a stream, and be written to."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)
