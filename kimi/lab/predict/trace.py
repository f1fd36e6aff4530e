"""What a kernel asks of memory and peers, and how long it computes between: enough to time it.

A trace is recorded once from a compiled schedule, and can then be timed under any cost model in
milliseconds. Waits for units are those of the recording: of kernels whose units run dry while they
wait for data, the time differs a little from that of `simulate`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kimi.lab.predict.bundles import Program
from kimi.lab.predict.costs import JOINT, CostModel
from kimi.lab.predict.decode import Decoder
from kimi.lab.predict.links import Slice
from kimi.lab.predict.machine import KernelInputs, State, execute
from kimi.lab.predict.timing import DEFAULT_SLICE, Copy, Route, SemaphoreKey, Timer

_BUNDLES = 50_000_000
_COPY, _SIGNAL, _WAIT, _COUNT, _ASSIGN, _END = range(6)


@dataclass(frozen=True)
class Trace:
    """Events of one run.

    Attributes:
      sides: of the slice.
      copies: the different copies: kind, route, granules, arrival, sent, peer.
      keys: the different semaphores.
      events: (cycles since the event before, code, number of a copy or semaphore, amount, peer).
    """

    sides: tuple[int, ...]
    copies: Sequence[Sequence[Any]]
    keys: Sequence[SemaphoreKey]
    events: Sequence[Sequence[float]]

    def timed(self, costs: CostModel) -> Timer:
        """The timer of a run under a cost model."""
        keys = [(name, int(offset)) for name, offset in self.keys]
        copies = [
            Copy(n, kind, Route(route), granules, keys[arrival],
                 None if sent is None else keys[sent], "", "", peer)
            for n, (kind, route, granules, arrival, sent, peer) in enumerate(self.copies)
        ]  # fmt: skip
        timer = Timer(costs, None, Slice(self.sides))
        for cycles, code, index, amount, peer in self.events:
            timer.now += cycles
            if code == _COPY:
                timer.start(copies[int(index)])
            elif code == _WAIT:
                timer.wait(keys[int(index)], int(amount), 0, "")
            elif code == _SIGNAL:
                timer.signal(keys[int(index)], int(amount), int(peer))
            elif code == _COUNT:
                timer.count(keys[int(index)], int(amount))
            elif code == _ASSIGN:
                timer.assign(keys[int(index)], int(amount))
        return timer

    def us(self, costs: CostModel) -> float:
        """Predicted microseconds."""
        return costs.us(self.timed(costs).now)

    def fields(self) -> list[Any]:
        """For JSON."""
        return [self.sides, self.copies, self.keys, self.events]

    @classmethod
    def of(cls, fields: Sequence[Any]) -> "Trace":
        """Of what `fields` gave."""
        sides, *rest = fields
        return cls(tuple(sides), *rest)


class _Tracer(Timer):
    def __init__(self, costs: CostModel, where: Slice) -> None:
        super().__init__(costs, None, where)
        self._mark = 0.0
        self.copies: dict[tuple[Any, ...], int] = {}
        self.keys: dict[SemaphoreKey, int] = {}
        self.events: list[tuple[float, int, int, int, int]] = []

    def _key(self, key: SemaphoreKey) -> int:
        return self.keys.setdefault(key, len(self.keys))

    def _note(self, code: int, index: int, amount: int = 0, peer: int = 0) -> None:
        cycles = round(self.now - self._mark, 1)
        self.events.append(
            (int(cycles) if cycles.is_integer() else cycles, code, index, amount, peer)
        )

    def count(self, key: SemaphoreKey, amount: int) -> None:
        self._note(_COUNT, self._key(key), amount)
        super().count(key, amount)
        self._mark = self.now

    def assign(self, key: SemaphoreKey, value: int) -> None:
        self._note(_ASSIGN, self._key(key), value)
        super().assign(key, value)
        self._mark = self.now

    def signal(self, key: SemaphoreKey, amount: int, peer: int = 0) -> None:
        self._note(_SIGNAL, self._key(key), amount, peer)
        super().signal(key, amount, peer)
        self._mark = self.now

    def wait(self, key: SemaphoreKey, amount: int, site: int, scope: str) -> None:
        self._note(_WAIT, self._key(key), amount)
        super().wait(key, amount, site, scope)
        self._mark = self.now

    def start(self, copy: Copy) -> None:
        sent = None if copy.sent is None else self._key(copy.sent)
        what = (
            copy.kind,
            copy.route.value,
            copy.granules,
            self._key(copy.arrival),
            sent,
            copy.peer,
        )
        self._note(_COPY, self.copies.setdefault(what, len(self.copies)))
        super().start(copy)
        self._mark = self.now

    def finish(self) -> None:
        """The cycles after the last event."""
        self._note(_END, 0)


def trace_of(
    program: Program, inputs: KernelInputs | None = None, where: Slice = DEFAULT_SLICE
) -> Trace:
    """Runs a kernel under the joint model and records it."""
    tracer = _Tracer(JOINT, where)
    state = State(inputs or KernelInputs(), [tracer])
    execute(program, Decoder(program, state).steps(), state, _BUNDLES)
    tracer.finish()
    return Trace(where.sides, list(tracer.copies), list(tracer.keys), tracer.events)
