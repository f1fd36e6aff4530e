"""A program at a terminal of its own."""

import os
import pty
import select
import subprocess
import sys
import time

from tests import waiting


class Terminal:
    """Runs Python code at a pseudo-terminal, which shows what is typed.

    Attributes:
      shown: everything so far.
    """

    def __init__(self, code: str, **variables: str) -> None:
        self._master, slave = pty.openpty()
        # A session of its own: the terminal becomes the one that Ctrl-C comes from.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OWN_TERMINAL + code], stdin=slave, stdout=slave, stderr=slave,
            env=os.environ | {"TERM": "xterm"} | variables, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.shown, self._passed = "", 0

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, keys: bytes) -> None:
        """Keys as a terminal sends them: b"\\x03" is Ctrl-C."""
        os.write(self._master, keys)

    def wait_for(self, text: str) -> None:
        """Reads until `text` is shown after what the last call waited for."""
        end = time.monotonic() + waiting.limit(10)
        while (at := self.shown.find(text, self._passed)) < 0:
            assert self._read(end), f"waited for {text!r}, found {self.shown[self._passed :]!r}"
        self._passed = at + len(text)

    def ends(self) -> int:
        """Waits for the end; the exit code."""
        end = time.monotonic() + waiting.limit(10)
        while self._read(end):
            pass
        return self._process.wait(max(1.0, end - time.monotonic()))

    def _read(self, end: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
        try:
            data = os.read(self._master, 1 << 16) if ready else b""
        except OSError:  # Linux: the other side is closed
            data = b""
        self.shown += data.decode(errors="replace")
        return bool(data)


_OWN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
