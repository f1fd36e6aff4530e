"""How long tests wait. A limit only ends what hangs: no test measures time."""

import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE = float(os.environ.get("KIMI_TEST_PATIENCE", "30"))
"""Seconds that a test waits for each second that an idle machine of two cores would need:
enough for one that is four times slower and busy."""

_MARK = "TEST_THAT_STARTED_THIS"
_numbers = itertools.count()


def limit(seconds: float) -> float:
    """The limit, in seconds, of something that takes so long on an idle machine."""
    return PATIENCE * max(seconds, 6)


def until(found: Callable[[], object], what: str, seconds: float = 10) -> None:
    """Returns when `found` is true."""
    deadline = time.monotonic() + limit(seconds)
    while not found():
        assert time.monotonic() < deadline, f"{what}: not in {limit(seconds):.0f} s"
        time.sleep(0.02)


def run(command, seconds: float = 10, **options) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with text captured; nothing that it has started outlives it."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    with started(command, **options) as process:
        out, err = process.communicate(timeout=limit(seconds))
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextlib.contextmanager
def started(command, env=None, **options) -> Iterator[subprocess.Popen]:
    """A process; in the end it is killed, with all that it has started, in whatever session."""
    mark = f"{os.getpid()}-{next(_numbers)}"
    env = dict(os.environ if env is None else env) | {_MARK: mark}
    with subprocess.Popen(list(map(str, command)), env=env, **options) as process:
        try:
            yield process
        finally:
            process.kill()
            _kill_all(f"{_MARK}={mark}".encode())


def _kill_all(mark: bytes) -> None:
    """Kills the processes that have inherited a variable, where the system shows it."""
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in file.read_bytes().split(b"\0"):
                os.kill(int(file.parent.name), signal.SIGKILL)
