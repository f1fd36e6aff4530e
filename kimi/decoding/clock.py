"""Wall time, with the time that jax traces and compiles told apart."""

import threading
import time

import jax

_EVENTS = "/jax/core/compile/"  # tracing, lowering, compiling or reading from the cache


class _Compiling(threading.local):
    """Spans of time, in seconds, in which this thread compiled; they do not overlap."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self.seconds = 0.0

    def add(self, start: float, end: float) -> None:
        # What goes on inside a span ends, and is told, before it.
        while self.spans and self.spans[-1][0] >= start:
            inner = self.spans.pop()
            self.seconds -= inner[1] - inner[0]
        self.spans.append((start, end))
        self.seconds += end - start


_compiling = _Compiling()


def _listen(event: str, start_time: float, end_time: float, **_: str | int) -> None:
    if event.startswith(_EVENTS):
        _compiling.add(start_time, end_time)


jax.monitoring.register_event_time_span_listener(_listen)


class Lap:
    """Measures from its making on, in the thread that made it."""

    def __init__(self) -> None:
        self._start, self._compiled = time.perf_counter(), _compiling.seconds

    def end(self) -> tuple[float, float]:
        """Seconds of wall time without compiling, and seconds of compiling."""
        compiled = _compiling.seconds - self._compiled
        return max(0.0, time.perf_counter() - self._start - compiled), compiled
