"""The scalar side of a core: runs bundles so that loops, predicates and semaphores are exact."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kimi.lab.predict.bundles import Program
from kimi.lab.predict.scalars import Pointer, Value, number
from kimi.lab.predict.timing import Copy, Recorder, SemaphoreKey, Timer

Step = Callable[[], None]
OUTSIDE = "-"  # the scope of bundles in no named scope


@dataclass(frozen=True)
class KernelInputs:
    """What the kernel finds in scalar memory: the static schedule does not know it.

    Attributes:
      operands: words of an integer operand by its position, as laid out in SMEM (rows of a 2-D
        operand are 128 words apart).
      fills: words of an SMEM buffer by allocation name, e.g. a list of experts that vector code
        computed: what successive copies into it from an unknown source bring, then again from the
        first; before any copy the first.
      popped: what vector-to-scalar moves yield, by named scope, in turn and then from the start.
      words: fixed SMEM words by allocation name, e.g. the core's partition id.
      rank: that partition id.

    Everything else reads as zero and is counted as unknown.
    """

    operands: Mapping[int, Sequence[int]] = field(default_factory=dict)
    fills: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    popped: Mapping[str, Sequence[int]] = field(default_factory=dict)
    words: Mapping[str, int] = field(default_factory=dict)
    rank: int = 0


@dataclass
class State:
    """Registers, scalar memory, and what the run found out."""

    inputs: KernelInputs
    timers: Sequence[Timer]
    registers: dict[str, Value] = field(default_factory=dict)
    smem: dict[SemaphoreKey, Value] = field(default_factory=dict)
    smem_words: dict[str, Sequence[int]] = field(default_factory=dict)
    writes: list[tuple[str, Value]] = field(default_factory=list)
    scopes: list[str] = field(default_factory=list)
    scope: str = OUTSIDE
    site: int = 0
    branch: tuple[int, int] | None = None  # target, bundles that still issue before it
    copies: Counter[Copy] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    unimplemented: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    halts: Counter[str] = field(default_factory=Counter)
    pops: Counter[str] = field(default_factory=Counter)
    filled_times: Counter[str] = field(default_factory=Counter)
    divisions: dict[str, list[int]] = field(default_factory=dict)  # results not yet popped

    def commit(self) -> None:
        """Writes results to their registers: all reads of a bundle come before its writes."""
        for name, value in self.writes:
            self.registers[name] = value
            self.registers[name.rsplit("_", 1)[-1]] = value
        self.writes.clear()

    def load(self, key: SemaphoreKey) -> Value:
        """Reads an SMEM word."""
        if key in self.smem:
            return self.smem[key]
        name, offset = key
        if name in self.inputs.words:
            return self.inputs.words[name]
        words = self.smem_words.get(name)
        if words is None and name in self.inputs.fills:
            words = self.inputs.fills[name][0]
        if words is not None and offset < len(words):
            return words[offset] & 0xFFFFFFFF
        self.unknown[f"smem {name}"] += 1
        return 0

    def filled(self, target: Value, source: Value) -> None:
        """A copy into SMEM replaced a buffer's words by those of `source`."""
        if not isinstance(target, Pointer):
            return
        for key in [key for key in self.smem if key[0] == target.name]:
            del self.smem[key]
        self.smem_words.pop(target.name, None)
        operand = source.name.removeprefix("input ") if isinstance(source, Pointer) else ""
        fills = self.inputs.fills.get(target.name)
        if operand.isdigit() and int(operand) in self.inputs.operands:
            self.smem_words[target.name] = self.inputs.operands[int(operand)]
        elif fills:
            turn = self.filled_times[target.name] % len(fills)
            self.smem_words[target.name] = fills[turn]
            self.filled_times[target.name] += 1

    def pop(self) -> int:
        """The next vector-to-scalar value of the current scope."""
        values = self.inputs.popped.get(self.scope)
        if not values:
            self.unknown[f"vector to scalar in scope {self.scope}"] += 1
            return 0
        self.pops[self.scope] += 1
        return values[(self.pops[self.scope] - 1) % len(values)] & 0xFFFFFFFF

    def enter(self, name: str) -> None:
        """Opens a named scope."""
        self.scopes.append(name)
        self._announce(name, True)

    def leave(self, name: str) -> None:
        """Closes a named scope and those inside it that were left open."""
        if name not in self.scopes:
            return
        while self.scopes.pop() != name:
            pass
        self._announce(name, False)

    def _announce(self, name: str, started: bool) -> None:
        self.scope = self.scopes[-1] if self.scopes else OUTSIDE
        for timer in self.timers:
            if timer.recorder:
                timer.recorder.scope(name, started, timer.now)


@dataclass
class Execution:
    """How often each bundle issued, in which scope, and the loops that were taken."""

    visits: list[int]
    scope_bundles: Counter[str]
    loops: Counter[int]

    @property
    def bundles(self) -> int:
        """Bundles issued."""
        return sum(self.visits)


def execute(
    program: Program, steps: Sequence[tuple[Step, ...]], state: State, max_bundles: int
) -> Execution:
    """Runs a program to its end, to `max_bundles`, or until the recorder has seen enough.

    Args:
      steps: the decoded scalar instructions of each bundle, see `decode.Decoder`.
    """
    bundles, size = program.bundles, len(program.bundles)
    ops = [bundle.unit_ops for bundle in bundles]
    visits, loops = [0] * size, Counter[int]()
    scope_bundles: defaultdict[str, int] = defaultdict(int)
    at, left, delay, target = 0, max_bundles, -1, 0
    timers, recorder = state.timers, state.timers[0].recorder or Recorder()
    while at < size and left and not recorder.finished:
        visits[at] += 1
        left -= 1
        if steps[at]:
            state.site = at
            for step in steps[at]:
                step()
            if state.writes:
                state.commit()
            if state.branch is not None:
                target, delay = state.branch
                state.branch, delay = None, delay + 1
        scope, unit_ops = state.scope, ops[at]
        scope_bundles[scope] += 1
        for timer in timers:
            if unit_ops:
                timer.issue(unit_ops, at, scope)
            else:
                timer.now += 1
        at += 1
        if delay > 0:
            delay -= 1
            if delay == 0:
                if target < at:
                    loops[target] += 1
                    recorder.looped(program.bundles[target].address, timers[0].now)
                at, delay = target, -1
    if not left and at < size:
        state.notes[f"stopped after {max_bundles} bundles"] += 1
    return Execution(visits, Counter(scope_bundles), loops)


def is_set(value: Value) -> bool:
    """A predicate's truth."""
    return number(value) != 0
