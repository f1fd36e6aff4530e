"""Predicts the time of a compiled kernel by executing its schedule."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kimi.errors import InputError
from kimi.lab.predict.bundles import Allocation, Program
from kimi.lab.predict.costs import JOINT, CostModel
from kimi.lab.predict.decode import Decoder
from kimi.lab.predict.dump import PARTITION, ZEROS
from kimi.lab.predict.links import Slice
from kimi.lab.predict.machine import Execution, KernelInputs, State, execute
from kimi.lab.predict.scalars import number
from kimi.lab.predict.timing import (
    DEFAULT_SLICE,
    GRANULE_BYTES,
    Copy,
    Parts,
    Recorder,
    Route,
    SemaphoreKey,
    Timer,
)

MAX_BUNDLES = 50_000_000


@dataclass(frozen=True)
class Stall:
    """A wait that cost time: where, in which scope, for which semaphore, how many cycles."""

    address: int
    location: str | None
    scope: str
    semaphore: str
    cycles: float


@dataclass
class Prediction:
    """Predicted cost of one kernel launch on one core; never measured.

    Attributes:
      costs: the assumptions.
      cycles: from the first bundle to the last.
      parts: of the cycles; they sum to `cycles` but for delays that the kernel asks for.
      hbm_busy: cycles in which the HBM queue moved data.
      hbm_bytes, ici_bytes: moved by copies; bytes read and written in HBM count once each.
      messages: sent to peers, signals left out.
      link_bytes: over the fullest link between chips, see `links`.
      hbm_arrays: of the former, by operand: `input 2`, `output 9`.
      exchange_rounds: times that the core waited for peers after it had sent them data: remote
        copies issued without such a wait between them are one round.
      signal_rounds: the same with semaphore signals only, e.g. the entry barrier.
      scopes, lines: parts by innermost named scope and by source line.
      stalls: waits that cost time, longest first.
      copies: how often each copy was issued.
      loops: header address -> times it was entered from its own end.
      undrained: semaphores that are not zero at exit; a core halts on them.
      unsatisfied: waits that nothing would ever satisfy, taken as satisfied.
      unknown: scalars the schedule does not tell, taken as zero.
      unimplemented: scalar instructions this simulator does not know, skipped.
      halts, notes: checks that failed, and other doubts about the run.
      smem: scalar memory at exit, by allocation and word.
    """

    costs: CostModel
    cycles: float
    parts: Parts
    hbm_busy: float
    hbm_bytes: int
    ici_bytes: int
    messages: int
    link_bytes: float
    hbm_arrays: dict[str, int]
    exchange_rounds: int
    signal_rounds: int
    scopes: dict[str, Parts]
    lines: dict[str, Parts]
    stalls: list[Stall]
    copies: dict[Copy, int]
    loops: dict[int, int]
    undrained: dict[str, int]
    unsatisfied: dict[str, int]
    unknown: dict[str, int]
    unimplemented: dict[str, int]
    halts: dict[str, int]
    notes: dict[str, int]
    smem: dict[SemaphoreKey, int] = field(repr=False)

    @property
    def us(self) -> float:
        """Predicted microseconds."""
        return self.costs.us(self.cycles)

    @property
    def problems(self) -> list[str]:
        """Reasons to distrust the prediction or the kernel, one line each."""
        groups = (
            ("semaphore not zero at exit", self.undrained),
            ("wait that nothing satisfies", self.unsatisfied),
            ("kernel check failed", self.halts),
            ("instruction not modelled", self.unimplemented),
            ("note", self.notes),
        )
        return [f"{what}: {name} ({n})" for what, found in groups for name, n in found.items()]


def partition_words(allocations: Sequence[Allocation], partition: int) -> dict[str, int]:
    """`KernelInputs.words` that make the simulated core the device with index `partition`.

    There is one replica; and loads that a predicate turned off read a null buffer.
    """
    zeros = {a.name: 0 for a in allocations if a.tag.endswith(ZEROS)}
    return zeros | {a.name: partition for a in allocations if PARTITION in a.tag}


def simulate(
    program: Program,
    models: Sequence[CostModel] = (JOINT,),
    inputs: KernelInputs | None = None,
    *,
    where: Slice = DEFAULT_SLICE,
    recorder: Recorder | None = None,
    max_bundles: int = MAX_BUNDLES,
) -> list[Prediction]:
    """Executes a kernel once and times it under each cost model.

    Args:
      where: the slice that it was compiled for.
      recorder: receives the events of the first cost model, see `timeline.record`.
      max_bundles: gives up after so many, with a note.
    Raises:
      InputError: no cost model.
    """
    if not models:
        raise InputError("simulate: expected at least one cost model, found none")
    timers = [Timer(k, None if n else recorder, where) for n, k in enumerate(models)]
    state = State(inputs or KernelInputs(), timers)
    steps = Decoder(program, state).steps()
    run = execute(program, steps, state, max_bundles)
    return [_prediction(program, state, timer, run) for timer in timers]


def _prediction(program: Program, state: State, timer: Timer, run: Execution) -> Prediction:
    addresses = {n: b.address for n, b in enumerate(program.bundles)}
    moved, arrays = Counter[Route](), Counter[str]()
    for copy, times in state.copies.items():
        size = copy.granules * GRANULE_BYTES * times
        start, _, end = copy.kind.rpartition(":")[2].partition("_to_")
        ends = [n for n, at in ((copy.source, start), (copy.target, end)) if at == "hbm"]
        if copy.route is Route.HBM:
            moved[copy.route] += size * len(ends)
            for array in ends:
                arrays[array] += size
        else:
            moved[copy.route] += size
    return Prediction(
        costs=timer.costs,
        cycles=timer.now,
        parts=_parts(timer, run),
        hbm_busy=timer.hbm_busy,
        hbm_bytes=moved[Route.HBM],
        ici_bytes=moved[Route.REMOTE],
        messages=sum(n for c, n in state.copies.items() if c.route is Route.REMOTE),
        link_bytes=timer.network.worst_bytes,
        hbm_arrays=dict(arrays.most_common()),
        exchange_rounds=timer.rounds["copy"],
        signal_rounds=timer.rounds["signal"],
        scopes=_scopes(timer, run),
        lines=_lines(program, timer, run),
        stalls=[
            Stall(addresses[site], program.bundles[site].location, scope, _label(key), cycles)
            for (scope, site, key), cycles in sorted(
                timer.wait_at.items(), key=lambda item: -item[1]
            )
        ],
        copies=dict(state.copies),
        loops={addresses[n]: times for n, times in sorted(run.loops.items())},
        undrained={_label(key): n for key, n in timer.left_over().items()},
        unsatisfied={
            f"{_label(key)} at 0x{addresses[site]:x}": n
            for (site, key), n in timer.unsatisfied.items()
        },
        unknown=dict(state.unknown),
        unimplemented=dict(state.unimplemented),
        halts=dict(state.halts),
        notes=dict(state.notes),
        smem={key: number(value) for key, value in state.smem.items()},
    )


def _label(key: SemaphoreKey) -> str:
    name, offset = key
    return f"{name}[{offset}]" if offset else name


def _parts(timer: Timer, run: Execution) -> Parts:
    parts = Parts(bundles=run.bundles, interlock=sum(timer.interlock_at.values()))
    for (_, _, key), cycles in timer.wait_at.items():
        parts.add_wait(timer.route(key), cycles)
    return parts


def _scopes(timer: Timer, run: Execution) -> dict[str, Parts]:
    parts: defaultdict[str, Parts] = defaultdict(Parts)
    for scope, bundles in run.scope_bundles.items():
        parts[scope].bundles = bundles
    for (scope, _), cycles in timer.interlock_at.items():
        parts[scope].interlock += cycles
    for (scope, _, key), cycles in timer.wait_at.items():
        parts[scope].add_wait(timer.route(key), cycles)
    return _sorted(parts)


def _lines(program: Program, timer: Timer, run: Execution) -> dict[str, Parts]:
    names = [bundle.location or "?" for bundle in program.bundles]
    parts: defaultdict[str, Parts] = defaultdict(Parts)
    for site, visits in enumerate(run.visits):
        if visits:
            parts[names[site]].bundles += visits
    for (_, site), cycles in timer.interlock_at.items():
        parts[names[site]].interlock += cycles
    for (_, site, key), cycles in timer.wait_at.items():
        parts[names[site]].add_wait(timer.route(key), cycles)
    return _sorted(parts)


def _sorted(parts: Mapping[str, Parts]) -> dict[str, Parts]:
    return dict(sorted(parts.items(), key=lambda item: -item[1].total))
