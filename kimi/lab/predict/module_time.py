"""The predicted time of a whole XLA program, instruction by instruction.

Fusions, copies, sorts and Pallas kernels are simulated from their own compiled schedules (see
`simulate`), once each; instructions that do the same share one. What has no schedule is charged by
its bytes:

* exchanges of all ranks: a message of 1 / R of their result to each peer, see `network`;
* copies that run beside the core, and gathers of the sparse cores: HBM bandwidth.

All of it is added up as if nothing ran beside anything else, though the compiler starts copies and
gathers early: so an upper bound of what the schedules say. Time between instructions is not known
and not counted. Scalars that the schedules do not know are zero: they are offsets of slices.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kimi.errors import InputError
from kimi.lab.predict.costs import JOINT, CostModel
from kimi.lab.predict.dump import schedule_files
from kimi.lab.predict.launch import Kernel, read_kernel
from kimi.lab.predict.links import Slice
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.module import Computation, Instruction, Module
from kimi.lab.predict.network import exchange_us
from kimi.lab.predict.simulate import simulate
from kimi.lab.predict.timing import DEFAULT_SLICE
from kimi.lab.predict.trace import Trace, trace_of

Feed = KernelInputs | Callable[[Kernel], KernelInputs]
_EXCHANGES = ("all-gather", "all-to-all")
_COPIES = ("copy-done", "slice-done")
# Names only, or charged where what they start is done.
_FREE = frozenset(
    (
        "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy-start",
        "slice-start", "call-update", "call-done",
    )
)  # fmt: skip
_RUNS = frozenset(("while", "conditional", "call-start"))


@dataclass(frozen=True)
class Cost:
    """Of one instruction run once, or of many.

    Attributes:
      us: predicted microseconds.
      hbm_bytes: read from and written to HBM.
      link_bytes: that a core receives from others.
      unscheduled_us: part of `us` charged by bytes, without a schedule.
    """

    us: float = 0.0
    hbm_bytes: float = 0.0
    link_bytes: float = 0.0
    unscheduled_us: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(a + b for a, b in zip(self._all(), other._all(), strict=True)))

    def times(self, count: float) -> "Cost":
        """Of so many runs."""
        return Cost(*(count * a for a in self._all()))

    def _all(self) -> tuple[float, ...]:
        return self.us, self.hbm_bytes, self.link_bytes, self.unscheduled_us


@dataclass(frozen=True)
class Item:
    """An instruction that takes time.

    Attributes:
      instruction: the instruction.
      runs: how often it runs, on average.
      cost: of one run.
    """

    instruction: Instruction
    runs: float
    cost: Cost


@dataclass(frozen=True)
class Turns:
    """What the module does not say.

    Attributes:
      dynamic: how often the body of a loop runs whose bound is known at run time only.
      branches: share of the runs of a conditional that take each of its branches, by a named scope
        that it is in.
    """

    dynamic: float
    branches: Mapping[str, tuple[float, ...]]


@dataclass
class ModuleTime:
    """Costs of the instructions of a module.

    Attributes:
      module: as compiled.
      folder: with the dumped schedules.
      ranks: that take part in an exchange.
      inputs: what a Pallas kernel reads of its scalars, or gives it for a kernel, by the beginning
        of its name.
      costs: assumptions.
      where: the slice.
      problems: doubts about schedules that were simulated, by name.
      bundles: of schedules that were simulated, by name.
    """

    module: Module
    folder: Path
    ranks: int
    inputs: Mapping[str, Feed] = field(default_factory=dict)
    costs: CostModel = JOINT
    where: Slice = DEFAULT_SLICE
    problems: dict[str, list[str]] = field(default_factory=dict)
    bundles: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._files = schedule_files(self.folder.iterdir())
        self.where = replace(self.where, wrap=self.costs.wrap)
        self._costs: dict[str, Cost] = {}
        # Of kernels that talk to their peers: what they cost under another model, and their traces.
        self._linked: dict[str, Cost] = {}
        self._traces: dict[str, Trace] = {}
        self._twins: dict[str, str] = {}
        for where in self.module.computations.values():
            for i in where.instructions:
                if i.name in self._files:
                    self._twins.setdefault(self.module.likeness(where, i), i.name)

    def under(self, costs: CostModel) -> "ModuleTime":
        """The same program under another model; what talks to no peer is timed once for all."""
        other = replace(self, costs=costs)
        if not costs.computes_as(self.costs):
            return other
        known = self._costs.items()
        other._costs = {name: cost for name, cost in known if not cost.link_bytes}
        other._linked = {name: cost for name, cost in known if cost.link_bytes}
        other._traces, other.bundles = self._traces, self.bundles
        return other

    def items(self, turns: Turns) -> list[Item]:
        """Everything that takes time, in the order of the program."""
        return list(self._walk(self.module.entry, 1.0, turns))

    def _walk(self, name: str, runs: float, turns: Turns) -> Iterator[Item]:
        where = self.module.computations[name]
        for i in where.instructions:
            if i.opcode in _RUNS:
                for called, share in self._called(i, turns):
                    yield from self._walk(called, runs * share, turns)
            elif i.opcode not in _FREE:
                cost = self._cost(where, i)
                if cost.us:
                    yield Item(i, runs, cost)

    def _called(self, i: Instruction, turns: Turns) -> Sequence[tuple[str, float]]:
        if i.opcode == "while":
            trips = self.module.trips(i)
            return ((i.called[-1], turns.dynamic if trips is None else trips),)
        if i.opcode == "conditional":
            scopes = [name for name in i.path.split("/") if name in turns.branches]
            shares = turns.branches[scopes[-1]] if scopes else ()
            if len(shares) != len(i.called):
                raise InputError(
                    f"conditional {i.name} ({i.path}): expected shares of {len(i.called)} "
                    f"branches, found {len(shares)}"
                )
            return tuple(zip(i.called, shares, strict=True))
        return tuple((name, 1.0) for name in i.called)

    def _cost(self, where: Computation, i: Instruction) -> Cost:
        if i.name not in self._costs:
            self._costs[i.name] = self._found(where, i)
        return self._costs[i.name]

    def _found(self, where: Computation, i: Instruction) -> Cost:
        if i.opcode in _EXCHANGES:
            size = sum(a.nbytes for a in i.results) / self.ranks
            us = exchange_us(self.costs, self.where, ((n, size) for n in range(1, self.ranks)))
            moved = (self.ranks - 1) * size
            return Cost(us, 2 * moved, moved)
        if i.opcode in _COPIES:
            return self._by_bytes(sum(a.nbytes for a in i.results))
        twin = i.name if i.name in self._files else self._twins.get(self.module.likeness(where, i))
        if twin is None:
            # A gather: as many bytes as it brings. Scalars are free.
            return self._by_bytes(2 * sum(a.nbytes for a in i.results if a.hbm and a.shape))
        if twin not in self._costs:
            self._costs[twin] = self._simulated(twin)
        return self._costs[twin]

    def _simulated(self, name: str) -> Cost:
        linked = self._linked.get(name)
        if linked and name in self._traces:
            return replace(linked, us=self._traces[name].us(self.costs))
        kernel = read_kernel(name, self._files[name])
        self.bundles[name] = len(kernel.program.bundles)
        feed = next((f for start, f in self.inputs.items() if name.startswith(start)), None)
        inputs = feed(kernel) if callable(feed) else feed
        if linked:
            self._traces[name] = trace_of(kernel.program, inputs, self.where)
            return self._simulated(name)
        [found] = simulate(kernel.program, (self.costs,), inputs, where=self.where)
        if found.problems:
            self.problems[name] = found.problems
        return Cost(found.us, found.hbm_bytes, found.ici_bytes)

    def _by_bytes(self, count: int) -> Cost:
        if not count:
            return Cost()
        us = copy_us(self.costs, count)
        return Cost(us, count, 0.0, us)


def copy_us(costs: CostModel, count: float) -> float:
    """Microseconds of a copy of so many bytes from or to HBM."""
    return costs.hbm_latency_us + 1e6 * count / costs.hbm_stream_bytes_s
