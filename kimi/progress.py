"""A line about work that takes long, for those who wait for it in a notebook or a Python shell."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 1.0  # seconds without a word

log = logging.getLogger("kimi")


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Says what goes on once it has taken a second, and at its end how long it took.

    The lines go to the logger `kimi` at level INFO, which a program shows or not as it likes. In an
    interactive session that has not said so they are printed on standard error.
    """
    start, told = time.perf_counter(), threading.Event()

    def tell() -> None:
        told.set()
        _info(f"{what} ...")

    timer = threading.Timer(PATIENCE, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if told.is_set():
            _info(f"{what}: {time.perf_counter() - start:.1f} s")


def _info(line: str) -> None:
    if log.level == logging.NOTSET and not log.isEnabledFor(logging.INFO) and hasattr(sys, "ps1"):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("kimi: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    log.info(line)
