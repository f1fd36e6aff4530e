"""A bandwidth that copies in flight share."""

import heapq
from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class Served:
    """A copy that is done: when its first and last byte moved, and what was asked for."""

    begin: float
    end: float
    payload: Any


class SharedBandwidth:
    """Serves so many copies at once at equal shares; others wait in the order of their start.

    Times are in cycles and never go back.
    """

    def __init__(self, bytes_cycle: float, streams: int) -> None:
        self._rate, self._most = bytes_cycle, streams
        self._now = self._given = self.busy = 0.0  # given: bytes that each copy in service has got
        self._number = 0
        self._waiting: list[tuple[float, int, float, Any]] = []
        self._served: list[tuple[float, int, float, Any]] = []

    def add(self, begin: float, size: float, payload: Any) -> None:
        """A copy whose first byte could move at `begin`."""
        self._number += 1
        heapq.heappush(self._waiting, (begin, self._number, size, payload))

    def next(self, until: float = inf) -> Served | None:
        """The next copy to be done, no later than `until`; time goes on to then, or to `until`."""
        while True:
            count = len(self._served)
            done = inf
            if count:
                done = self._now + (self._served[0][0] - self._given) * count / self._rate
            begin = inf
            if self._waiting and count < self._most:
                begin = max(self._now, self._waiting[0][0])
            at = min(done, begin)
            if at > until or at == inf:
                if until != inf:
                    self._go_on(until)
                return None
            self._go_on(at)
            if begin < done:
                _, number, size, payload = heapq.heappop(self._waiting)
                heapq.heappush(self._served, (self._given + size, number, at, payload))
                continue
            given, _, began, payload = heapq.heappop(self._served)
            self._given = given
            return Served(began, at, payload)

    def _go_on(self, at: float) -> None:
        if self._served and at > self._now:
            self._given += (at - self._now) * self._rate / len(self._served)
            self.busy += at - self._now
        self._now = max(self._now, at)
