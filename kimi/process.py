"""Ctrl-C at any moment, and standard streams that are closed, for programs (not for libraries).

The first Ctrl-C raises KeyboardInterrupt in the main thread, as it does everywhere in Python. That
alone would not end every program: a compiler returns to Python after minutes, and libraries,
callbacks and finalizers swallow what is raised in them. So a thread, woken by the signal itself,
ends the process if it still runs `GRACE_SECONDS` later, and whatever else fails in between is taken
for what it is, the interruption. Only the standard library is imported here: it comes first.
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
_HANDLED = b"\0"  # beside the numbers of signals, which CPython writes into the pipe
_SHOW_CURSOR = "\x1b[?25h"  # a progress bar that was cut off has hidden it


class _Interrupts:
    """The state of this process: there is one handler for a signal.

    Attributes:
      pending: whether a Ctrl-C has come that nobody has handled.
      pipe: into which CPython writes the number of a signal at once; None before `begin`.
      stop: what Ctrl-C does instead of raising.
    """

    pending = False
    pipe: int | None = None
    stop: Callable[[], None] | None = None


_state = _Interrupts()


def begin() -> None:
    """Prepares the process of a program. To be called before imports that take long."""
    _open_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background
        return
    reading, _state.pipe = os.pipe()
    os.set_blocking(_state.pipe, False)
    signal.signal(signal.SIGINT, _on_interrupt)
    signal.set_wakeup_fd(_state.pipe, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    sys.excepthook, sys.unraisablehook, threading.excepthook = _uncaught, _swallowed, _in_thread


def handled() -> None:
    """Says that a KeyboardInterrupt was caught and the program goes on, or needs time to end."""
    _state.pending = False
    if _state.pipe is not None:
        os.write(_state.pipe, _HANDLED)


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Within the block a first Ctrl-C raises nothing; what is given tells whether it came.

    The process ends all the same where Python is not reached again, as in a compiler.
    """
    came = threading.Event()

    def stop() -> None:
        _state.stop = None  # the second one ends the program
        came.set()
        handled()

    _state.stop = stop
    try:
        yield came.is_set
    finally:
        _state.stop = None


def conclude(line: str = "interrupted") -> int:
    """Says that the program was interrupted, and ends it.

    Returns: the exit code, where `begin` has not been called.
    """
    if _state.pipe is None:
        print(line, file=sys.stderr)
        return INTERRUPTED
    handled()  # the thread says nothing any more
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    _end(line)
    raise AssertionError("unreachable")


def is_interrupted() -> bool:
    """Whether whatever has failed now has failed because of Ctrl-C."""
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
    """Wakes a line editor, which misses a signal that comes just before it waits for a key.

    To all others the signal is nothing.
    """
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGWINCH)


def _end(line: str = "interrupted") -> None:
    with suppress(OSError):
        os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}{line}\n".encode())
    # Not by `sys.exit`: it waits for threads, and they for what they compute.
    os._exit(INTERRUPTED)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Of the main thread: what is expected has been caught; the rest is a bug."""
    if _state.pending or issubclass(kind, KeyboardInterrupt):
        conclude()
    sys.__excepthook__(kind, error, trace)
    request = "please report the lines above, and the command"
    print(f"this is a bug in kimi-k3-tpu {__version__}: {request}", file=sys.stderr)


def _swallowed(found: "sys.UnraisableHookArgs") -> None:
    """In a finalizer or a callback, where it goes no further."""
    if _state.pending:
        conclude()
    sys.__unraisablehook__(found)


def _in_thread(found: Any) -> None:
    """Threads fail when the main thread has left them: no news after Ctrl-C."""
    if not _state.pending:
        threading.__excepthook__(found)


def _forget() -> None:
    """In a child by fork, whose pipe is its parent's."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _state.pipe = None


def _open_closed_streams() -> None:
    """Else the next file that is opened would be taken for a stream, and be written into."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)
