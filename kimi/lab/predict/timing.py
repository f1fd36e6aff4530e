"""The clock of one prediction: unit interlocks, HBM, links to peers, semaphores.

All copies that touch HBM share its achieved bandwidth (`queues`); remote copies take links that
other cores use as well (`network`). The program is the same on every core and the cores are taken
to run in step, so what this core sends to a peer's semaphore is counted on its own semaphore of the
same name: the arrival of the matching message from the core that sends here.
"""

import bisect
import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import inf

from kimi.lab.predict.costs import CostModel
from kimi.lab.predict.links import Slice
from kimi.lab.predict.network import Network
from kimi.lab.predict.queues import Served, SharedBandwidth
from kimi.lab.predict.units import (
    MATMUL_CADENCE,
    PUSH_CADENCE,
    XLU_CADENCE,
    Interlock,
    UnitOp,
)

GRANULE_BYTES = 32
# First-byte latency of a direction relative to HBM -> VMEM (libtpu: 691, 596 and 736 cycles).
_HBM_LATENCY = {"vmem_to_hbm": 0.862, "hbm_to_smem": 1.065}
SemaphoreKey = tuple[str, int]
DEFAULT_SLICE = Slice((2, 2, 4))


class Route(Enum):
    """Which resource a copy occupies."""

    LOCAL = "local"  # VMEM and SMEM of this core
    HBM = "hbm"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Copy:
    """One issued DMA.

    Attributes:
      site: index of its bundle.
      kind: direction, e.g. `hbm_to_vmem`, `remote:vmem_to_vmem`.
      route: the resource it occupies.
      granules: size in granules of 32 bytes, the unit its semaphores count.
      arrival: semaphore counted when the data is in place (on the peer for a remote copy).
      sent: semaphore of the sender, remote copies only.
      source, target: buffers, for display.
      peer: number of the receiving core, exclusive-or that of the sender; 0 for other copies.
    """

    site: int
    kind: str
    route: Route
    granules: int
    arrival: SemaphoreKey
    sent: SemaphoreKey | None
    source: str
    target: str
    peer: int = 0


class Recorder:
    """Receives events, times in cycles; this base class drops them.

    Attributes:
      finished: set to end the run early.
    """

    finished = False

    def copied(self, copy: Copy, issued: float, begin: float, end: float) -> None:
        """A copy occupied its queue from `begin` to `end`."""

    def stalled(self, begin: float, end: float, key: SemaphoreKey, remote: bool) -> None:
        """The core waited for a semaphore, `remote` if a peer counts it."""

    def busy(self, unit: str, begin: float, cycles: int) -> None:
        """A unit accepted work for `cycles`."""

    def scope(self, name: str, started: bool, at: float) -> None:
        """A named scope started or ended."""

    def looped(self, header: int, at: float) -> None:
        """A branch went back to the bundle at address `header`."""


@dataclass
class Parts:
    """Cycles of a step, scope or line.

    Attributes:
      bundles: issued.
      interlock: waits for units.
      exchange, hbm, local: waits for semaphores that peers, HBM copies, or copies inside the core
        count.
    """

    bundles: float = 0
    interlock: float = 0
    exchange: float = 0
    hbm: float = 0
    local: float = 0

    @property
    def wait(self) -> float:
        """All waits for semaphores."""
        return self.exchange + self.hbm + self.local

    @property
    def total(self) -> float:
        """All cycles."""
        return self.bundles + self.interlock + self.wait

    def add_wait(self, route: Route, cycles: float) -> None:
        """Adds a wait for copies of a route."""
        if route is Route.REMOTE:
            self.exchange += cycles
        elif route is Route.HBM:
            self.hbm += cycles
        else:
            self.local += cycles


class Timer:
    """Advances time under one cost model as the machine executes."""

    def __init__(
        self, costs: CostModel, recorder: Recorder | None = None, where: Slice = DEFAULT_SLICE
    ) -> None:
        self.costs = costs
        self.network = Network(costs, replace(where, wrap=costs.wrap))
        self._hbm = SharedBandwidth(costs.hbm_bytes_cycle, costs.hbm_streams)
        self._local_rate = costs.bytes_cycle(costs.local_bytes_s)
        self.now = 0.0
        self.recorder = recorder
        self.semaphores: defaultdict[SemaphoreKey, int] = defaultdict(int)
        self._arrivals: defaultdict[SemaphoreKey, list[tuple[float, int]]] = defaultdict(list)
        self._unit_free: dict[str, float] = {}
        self._ready: dict[str, float] = {}
        self._slots: defaultdict[str, _ResultSlots] = defaultdict(_ResultSlots)
        self._assigned: set[SemaphoreKey] = set()
        self._from_peers: set[SemaphoreKey] = set()
        self._routes: dict[SemaphoreKey, Route] = {}
        self._exchange_open = ""
        # (scope, bundle) and (scope, bundle, semaphore) -> cycles
        self.interlock_at: defaultdict[tuple[str, int], float] = defaultdict(float)
        self.wait_at: defaultdict[tuple[str, int, SemaphoreKey], float] = defaultdict(float)
        self.unsatisfied: Counter[tuple[int, SemaphoreKey]] = Counter()
        self.rounds: Counter[str] = Counter()

    # ---- semaphores
    def count(self, key: SemaphoreKey, amount: int) -> None:
        """Adds to a local semaphore at once."""
        self._settle(key)
        self._assigned.discard(key)
        self.semaphores[key] += amount

    def assign(self, key: SemaphoreKey, value: int) -> None:
        """Sets a local semaphore."""
        self.semaphores[key] = value
        self._assigned.add(key)

    def value(self, key: SemaphoreKey) -> int:
        """What a local semaphore reads now."""
        self._settle(key)
        return self.semaphores[key]

    def signal(self, key: SemaphoreKey, amount: int, peer: int = 0) -> None:
        """Adds to a semaphore of a peer: by symmetry the same one here, a message later."""
        self._from_peers.add(key)
        self._exchange_open = self._exchange_open or "signal"
        self._arrive(key, self.network.send(self.now, peer, 0, key)[2], amount)

    def wait(self, key: SemaphoreKey, amount: int, site: int, scope: str) -> None:
        """Blocks until a semaphore holds `amount`; one that never will is recorded and passed."""
        if key in self._from_peers:
            self.network.wait(key)
            if self._exchange_open:
                self.rounds[self._exchange_open] += 1
                self._exchange_open = ""
        self._settle(key)
        begin, pending = self.now, self._arrivals[key]
        while self.semaphores[key] < amount:
            if not pending or key not in self._from_peers:
                self._serve(pending[0][0] if pending else inf, key)
            if not pending:
                self.unsatisfied[site, key] += 1
                self.semaphores[key] = amount
                break
            at, counted = heapq.heappop(pending)
            self.now = max(self.now, at)
            self.semaphores[key] += counted
        if self.now > begin:
            self.wait_at[scope, site, key] += self.now - begin
            if self.recorder:
                self.recorder.stalled(begin, self.now, key, key in self._from_peers)

    def route(self, key: SemaphoreKey) -> Route:
        """What counts a semaphore, or what it says has been sent."""
        return Route.REMOTE if key in self._from_peers else self._routes.get(key, Route.LOCAL)

    def left_over(self) -> dict[SemaphoreKey, int]:
        """Semaphores that are not zero once everything in flight has landed.

        One that the compiler's own epilogue set to a value is left out.
        """
        self._serve(inf)
        totals = {
            key: self.semaphores[key] + sum(amount for _, amount in self._arrivals[key])
            for key in (set(self.semaphores) | set(self._arrivals)) - self._assigned
        }
        return {key: total for key, total in sorted(totals.items()) if total}

    def _arrive(self, key: SemaphoreKey, at: float, amount: int) -> None:
        self._assigned.discard(key)
        heapq.heappush(self._arrivals[key], (at, amount))

    def _serve(self, until: float, key: SemaphoreKey | None = None) -> None:
        """HBM copies that are done no later than `until`, or the first one that counts `key`."""
        while served := self._hbm.next(until):
            copy, issued = served.payload
            self._arrive(copy.arrival, served.end, copy.granules)
            self._record(copy, issued, served)
            if copy.arrival == key:
                break

    def _settle(self, key: SemaphoreKey) -> None:
        if key not in self._from_peers:
            self._serve(self.now)
        pending = self._arrivals[key]
        while pending and pending[0][0] <= self.now:
            self.semaphores[key] += heapq.heappop(pending)[1]

    # ---- copies
    def start(self, copy: Copy) -> None:
        """Issues a DMA."""
        costs, size = self.costs, copy.granules * GRANULE_BYTES
        self._routes[copy.sent or copy.arrival] = copy.route
        if copy.route is Route.REMOTE:
            begin, end, arrival = self.network.send(self.now, copy.peer, size, copy.arrival)
            self._from_peers.add(copy.arrival)
            self._exchange_open = "copy"
            self._arrive(copy.arrival, arrival, copy.granules)
            if copy.sent:
                self._arrive(copy.sent, end, copy.granules)
            self._record(copy, self.now, Served(begin, end, None))
        elif copy.route is Route.HBM:
            latency = costs.cycles(costs.hbm_latency_us * _HBM_LATENCY.get(copy.kind, 1.0))
            self._assigned.discard(copy.arrival)
            self._hbm.add(self.now + latency, size, (copy, self.now))
        else:
            begin = self.now + costs.cycles(costs.local_latency_us)
            end = begin + size / self._local_rate
            self._arrive(copy.arrival, end, copy.granules)
            self._record(copy, self.now, Served(begin, end, None))

    def _record(self, copy: Copy, issued: float, served: Served) -> None:
        if self.recorder:
            self.recorder.copied(copy, issued, served.begin, served.end)

    @property
    def hbm_busy(self) -> float:
        """Cycles in which HBM moved data."""
        return self._hbm.busy

    # ---- bundles
    def issue(self, ops: Sequence[UnitOp], site: int, scope: str) -> None:
        """Issues a bundle with interlocked instructions: waits for their units, then one cycle."""
        at = self._earliest(ops)
        if at > self.now:
            self.interlock_at[scope, site] += at - self.now
        self._occupy(ops, at)
        self.now = at + 1

    def pad(self, cycles: int, site: int, scope: str) -> None:
        """Idles: cycles that the schedule does not show as bundles."""
        if cycles:
            self.interlock_at[scope, site] += cycles
            self.now += cycles

    def _earliest(self, ops: Sequence[UnitOp]) -> float:
        at, free, ready = self.now, self._unit_free, self._ready
        for op in ops:
            kind = op.interlock
            if kind is Interlock.MATMUL_RESULT:
                until = self._slots[op.unit].ready(op.slot)
            elif kind is Interlock.CONSUME:
                until = ready.get(op.token, 0.0)
            elif kind is Interlock.PUSH:
                until = free.get("push " + op.unit, 0.0)
            elif kind is not Interlock.PRODUCE:
                until = free.get(op.unit, 0.0)
            else:
                continue
            if until > at:
                at = until
        return at

    def _occupy(self, ops: Sequence[UnitOp], at: float) -> None:
        free, ready = self._unit_free, self._ready
        for op in ops:
            kind, cadence = op.interlock, 1
            if kind is Interlock.PUSH:
                cadence = PUSH_CADENCE
                free["push " + op.unit] = at + cadence
            elif kind is Interlock.MATMUL:
                cadence = MATMUL_CADENCE
                free[op.unit] = at + cadence
                self._slots[op.unit].fill(op.slot, at + op.latency)
            elif kind is Interlock.CROSS_LANE:
                cadence = XLU_CADENCE
                free[op.unit] = at + cadence
                ready[op.token] = at + op.latency
            elif kind is Interlock.PRODUCE:
                ready[op.token] = at + op.latency
            else:
                continue
            if self.recorder:
                self.recorder.busy(op.unit, at, cadence)


class _ResultSlots:
    """When the result slots of a matrix unit are filled.

    A row's results fill consecutive slots: one that no instruction named belongs to the row before.
    """

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        self._named: list[int] = []

    def fill(self, slot: int, at: float) -> None:
        """A row's results will be there, `slot` on, from `at` on."""
        if slot not in self._at:
            bisect.insort(self._named, slot)
        self._at[slot] = at

    def ready(self, slot: int) -> float:
        """From when on a slot can be read."""
        if slot in self._at:
            return self._at[slot]
        before = bisect.bisect(self._named, slot)
        return self._at[self._named[before - 1]] if before else 0.0
