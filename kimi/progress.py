"""Log lines about work that takes long, for notebooks and Python shells."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 1.0  # seconds before the first line

log = logging.getLogger("kimi")


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Logs `what` once the block has taken a second, and at its end the seconds it took.

    The lines go to the logger `kimi` at level INFO. In an interactive session that has not
    configured it, they are printed on standard error.
    """
    start, reported = time.perf_counter(), threading.Event()

    def report() -> None:
        reported.set()
        _info(f"{what} ...")

    timer = threading.Timer(PATIENCE, report)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if reported.is_set():
            _info(f"{what}: {time.perf_counter() - start:.1f} s")


def _info(line: str) -> None:
    if log.level == logging.NOTSET and not log.isEnabledFor(logging.INFO) and hasattr(sys, "ps1"):
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("kimi: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    log.info(line)
