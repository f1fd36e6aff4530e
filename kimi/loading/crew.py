"""Threads that stop together: the first error ends all, and is what the caller gets."""

import threading
import time
from collections.abc import Callable

_POLL_SECONDS = 0.1
_FAREWELL_SECONDS = 5.0  # for threads that hang in a system call when another one has failed


class Stopped(Exception):
    """Ends a thread whose crew has been stopped; never leaves `Crew`."""


class Crew:
    """Runs functions in threads.

    Threads wait on `changed`, which is also the lock of whatever they share, and call `check` while
    they wait and between steps.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._error: BaseException | None = None
        self._stopped = False

    def start(self, work: Callable[[], None], count: int = 1) -> None:
        """Starts `count` threads that each call `work`."""
        for _ in range(count):
            thread = threading.Thread(target=self._run, args=(work,), daemon=True)
            with self.changed:
                self._running += 1
            self._threads.append(thread)
            thread.start()

    def check(self) -> None:
        """Raises Stopped if the thread that calls this has to end."""
        if self._stopped:
            raise Stopped

    def wait(self, poll: Callable[[], None]) -> None:
        """Until all threads have ended; calls `poll` several times a second.

        Raises what a thread or `poll` raised first. The other threads have ended then, except
        those that hang in a system call: they are left behind.
        """
        try:
            while True:
                with self.changed:
                    if self._error is None and self._running:
                        self.changed.wait(_POLL_SECONDS)
                    if self._error is not None or not self._running:
                        break
                poll()
        except BaseException as e:
            self._stop(e)
        if self._error is None:
            return
        deadline = time.monotonic() + _FAREWELL_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        raise self._error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Stopped:
            pass
        except BaseException as e:
            self._stop(e)
        finally:
            with self.changed:
                self._running -= 1
                self.changed.notify_all()

    def _stop(self, error: BaseException) -> None:
        with self.changed:
            if self._error is None:
                self._error = error
            self._stopped = True
            self.changed.notify_all()
