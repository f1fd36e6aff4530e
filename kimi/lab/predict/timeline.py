"""What happens when: the events of one loop iteration or named scope of a compiled kernel.

timeline = record(kernel.program, Window(index=4), inputs=inputs)
Path("layer.svg").write_text(draw_svg(timeline))
Path("layer.json").write_text(perfetto_json(timeline))
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kimi.errors import InputError
from kimi.lab.predict.bundles import Allocation, Program
from kimi.lab.predict.costs import JOINT, CostModel
from kimi.lab.predict.links import Slice
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.simulate import simulate
from kimi.lab.predict.timing import (
    DEFAULT_SLICE,
    GRANULE_BYTES,
    Copy,
    Recorder,
    Route,
    SemaphoreKey,
)

# Two uses of a unit this close are drawn as one.
_MERGE_CYCLES = 16
_PRUNE_EVERY = 4096
HBM_TRACK, LINK_TRACK, LOCAL_TRACK = "HBM copies", "to peers", "local copies"
WAIT_TRACK, SCOPE_TRACK = "waits", "scope"
_TRACKS = {Route.HBM: HBM_TRACK, Route.REMOTE: LINK_TRACK, Route.LOCAL: LOCAL_TRACK}
_UNIT_NAMES = {"eup": "eup", "v2s": "vector to scalar", "sdiv": "scalar divide"}


@dataclass(frozen=True)
class Window:
    """The part of a run to record.

    Attributes:
      scope: a named scope; None takes a loop.
      loop: address of the loop's header; None takes the loop that spans most bundles.
      index: which occurrence, from 0. Iteration 0 of a loop includes what precedes it, and the
        last one what follows it.
    """

    scope: str | None = None
    loop: int | None = None
    index: int = 0


@dataclass(frozen=True)
class Span:
    """An event on a track, in cycles from the start of the run.

    `kind` is hbm, remote, local, unit, scope, wait (for this core's copies) or exchange (for
    peers).
    """

    track: str
    kind: str
    name: str
    begin: float
    end: float
    details: dict[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """Spans that overlap the window, with the window and the assumptions; all predicted."""

    title: str
    costs: CostModel
    begin: float
    end: float
    spans: list[Span]

    @property
    def tracks(self) -> list[str]:
        """Track names from top to bottom: scopes, waits, copies, units."""
        names = {span.track for span in self.spans}
        order = [WAIT_TRACK, LINK_TRACK, HBM_TRACK, LOCAL_TRACK]
        scopes = sorted(name for name in names if name.startswith(SCOPE_TRACK))
        middle = [name for name in order if name in names]
        return scopes + middle + sorted(names - set(scopes) - set(order))

    def us(self, cycles: float) -> float:
        """Microseconds since the window began."""
        return self.costs.us(cycles - self.begin)


def buffer_names(allocations: list[Allocation]) -> dict[str, str]:
    """Display names of a kernel's buffers: memory space and shape."""
    return {a.name: f"{a.space} {a.shape.split('{')[0]}" for a in allocations}


def longest_loop(program: Program) -> int:
    """Address of the header of the loop that spans most bundles.

    Raises:
      InputError: the program has no loop.
    """
    loops = [
        (index - target, program.bundles[target].address)
        for index, bundle in enumerate(program.bundles)
        for instruction in bundle.instructions
        if instruction.opcode == "sbr.rel"
        and (target := program.targets.get(instruction.operands[0], index + 1)) <= index
    ]
    if not loops:
        raise InputError("timeline: expected a loop in the kernel, found none")
    return max(loops)[1]


def record(
    program: Program,
    window: Window,
    *,
    costs: CostModel = JOINT,
    where: Slice = DEFAULT_SLICE,
    inputs: KernelInputs | None = None,
    names: Mapping[str, str] | None = None,
    title: str = "kernel",
) -> Timeline:
    """Runs a kernel until the window ends and returns its events.

    Args:
      names: display names of buffers, e.g. of `buffer_names`; operands are `input 2`.
    Raises:
      InputError: the run never reached the window.
    """
    loop = None
    if window.scope is None:
        loop = longest_loop(program) if window.loop is None else window.loop
    log = _EventLog(window, loop, names or {})
    [prediction] = simulate(program, (costs,), inputs, where=where, recorder=log)
    if log.begin is None:
        what = f"scope {window.scope!r}" if loop is None else f"loop at 0x{loop:x}"
        raise InputError(
            f"timeline: expected occurrence {window.index} of {what}, "
            f"found {log.seen} before the kernel ended"
        )
    return log.timeline(title, costs, prediction.cycles)


class _EventLog(Recorder):
    def __init__(self, window: Window, loop: int | None, names: Mapping[str, str]) -> None:
        self._window, self._loop, self._names = window, loop, names
        self.seen = 0
        self.begin: float | None = 0.0 if loop is not None and window.index == 0 else None
        self._end: float | None = None
        self._spans: list[Span] = []
        self._busy: dict[str, tuple[float, float]] = {}
        self._open: list[tuple[str, float]] = []

    # ---- the window
    def looped(self, header: int, at: float) -> None:
        if header != self._loop:
            return
        self.seen += 1
        if self.seen == self._window.index:
            self._start(at)
        elif self.begin is not None:
            self._finish(at)

    def _start(self, at: float) -> None:
        self.begin = at
        self._spans = [span for span in self._spans if span.end > at]

    def _finish(self, at: float) -> None:
        self._end, self.finished = at, True

    def scope(self, name: str, started: bool, at: float) -> None:
        if started:
            if name == self._window.scope and self.begin is None:
                if self.seen == self._window.index:
                    self._start(at)
                self.seen += 1
            self._open.append((name, at))
            return
        while self._open:
            inner, begin = self._open.pop()
            self._add(Span(self._scope_track(len(self._open)), "scope", inner, begin, at))
            if inner == name:
                break
        if name == self._window.scope and self.begin is not None:
            self._finish(at)

    def _scope_track(self, depth: int) -> str:
        return f"{SCOPE_TRACK} {depth}"

    # ---- events
    def copied(self, copy: Copy, issued: float, begin: float, end: float) -> None:
        source, target = (self._names.get(name, name) for name in (copy.source, copy.target))
        size = copy.granules * GRANULE_BYTES
        details: dict[str, str | float] = {"bytes": size, "kind": copy.kind, "issued": issued}
        name = f"{source} → {target}"
        self._add(Span(_TRACKS[copy.route], copy.route.value, name, begin, end, details))

    def stalled(self, begin: float, end: float, key: SemaphoreKey, remote: bool) -> None:
        name = self._names.get(key[0], key[0]) + f" [{key[1]}]"
        kind = "exchange" if remote else "wait"
        self._add(Span(WAIT_TRACK, kind, name, begin, end))

    def busy(self, unit: str, begin: float, cycles: int) -> None:
        known = self._busy.get(unit)
        if known and begin - known[1] <= _MERGE_CYCLES:
            self._busy[unit] = known[0], begin + cycles
            return
        if known:
            self._add_unit(unit, *known)
        self._busy[unit] = begin, begin + cycles

    def _add_unit(self, unit: str, begin: float, end: float) -> None:
        name = _UNIT_NAMES.get(unit, unit)
        self._add(Span(name, "unit", name, begin, end))

    def _add(self, span: Span) -> None:
        self._spans.append(span)
        if self.begin is None and len(self._spans) % _PRUNE_EVERY == 0:
            # Only what is still in flight can reach into the window.
            self._spans = [known for known in self._spans if known.end > span.begin]

    def timeline(self, title: str, costs: CostModel, cycles: float) -> Timeline:
        """The finished timeline of a run that took `cycles`."""
        assert self.begin is not None
        begin, end = self.begin, cycles if self._end is None else self._end
        for unit, interval in self._busy.items():
            self._add_unit(unit, *interval)
        for depth, (name, started) in enumerate(self._open):
            self._add(Span(self._scope_track(depth), "scope", name, started, end))
        inside = [span for span in self._spans if span.end > begin and span.begin < end]
        inside.sort(key=lambda span: (span.begin, -span.end))
        return Timeline(title, costs, begin, end, inside)
