"""Threads that stop together: the first error ends all, and is what the caller gets."""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator

Progress = Callable[[int], None]  # bytes done

_POLL_SECONDS = 0.1
_JOIN_SECONDS = 5.0  # for threads that hang in a system call when another one has failed


class _Stopped(Exception):
    """Ends a thread of a pool that has stopped."""


class WorkerPool:
    """Threads that work through items, once.

    Attributes:
      done_bytes: what `add` has counted.
    """

    def __init__(self) -> None:
        self.done_bytes = 0
        self._changed = threading.Condition()
        self._taking = threading.Lock()
        self._running = 0
        self._error: BaseException | None = None

    def check(self) -> None:
        """Ends the thread that calls this if another one has failed."""
        if self._error is not None:
            raise _Stopped

    def add(self, nbytes: int) -> None:
        """Counts bytes that are done."""
        with self._changed:
            self.done_bytes += nbytes

    def run[T](
        self, items: Iterable[T], work: Callable[[T], None], threads: int, progress: Progress
    ) -> None:
        """Calls `work` with every item, in so many threads.

        Args:
          work: calls `check` while it works.
          progress: called in this thread, several times a second and at the end.
        Raises:
          Whatever `work`, `items` or `progress` raised first. All threads have ended then, except
          those that hang in a system call: they are left behind.
        """
        queue = iter(items)
        started = [
            threading.Thread(target=self._work, args=(queue, work), daemon=True)
            for _ in range(threads)
        ]
        self._running = threads
        for thread in started:
            thread.start()
        try:
            while self._wait():
                progress(self.done_bytes)
        except BaseException as e:
            self._stop(e)
        if self._error is not None:
            deadline = time.monotonic() + _JOIN_SECONDS
            for thread in started:
                thread.join(max(0.0, deadline - time.monotonic()))
            raise self._error
        progress(self.done_bytes)

    def _wait(self) -> bool:
        """Waits for a moment; whether the threads are still at work."""
        with self._changed:
            if self._running and self._error is None:
                self._changed.wait(_POLL_SECONDS)
            return self._running > 0 and self._error is None

    def _work[T](self, queue: Iterator[T], work: Callable[[T], None]) -> None:
        try:
            while taken := self._take(queue):
                work(*taken)
        except _Stopped:
            pass
        except BaseException as e:
            self._stop(e)
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def _take[T](self, queue: Iterator[T]) -> list[T]:
        """The next item; none at the end."""
        with self._taking:
            self.check()
            return list(itertools.islice(queue, 1))

    def _stop(self, error: BaseException) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()
