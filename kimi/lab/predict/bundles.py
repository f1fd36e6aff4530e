"""A compiled kernel's schedule: VLIW bundles, and the buffers it works in. `dump` reads it."""

from collections import Counter
from dataclasses import dataclass, field

from kimi.lab.predict.units import UnitOp

BRANCH_DELAY = 6


@dataclass(slots=True)
class Instruction:
    """One slot of a bundle.

    Attributes:
      result: name of the value it defines, or None.
      opcode: e.g. `sadd.s32`, `dma.hbm_to_vmem`.
      operands: operand texts, without comments.
      predicate: name of the predicate that guards it, or a literal "0"/"1", or None.
      negated: run when the predicate is false.
      otherwise: value the result takes when the guard fails.
      comment: its comments, joined.
      location: `file.py:line` where known.
    """

    result: str | None
    opcode: str
    operands: list[str]
    predicate: str | None
    negated: bool
    otherwise: str | None
    comment: str
    location: str | None


@dataclass(slots=True)
class Bundle:
    """The instructions that issue in one cycle; see `Instruction`."""

    address: int
    depth: int
    instructions: list[Instruction]
    starts: list[str]
    location: str | None
    slots: Counter[str]
    unit_ops: tuple[UnitOp, ...]


@dataclass(frozen=True)
class Allocation:
    """One buffer of the kernel: name, shape text, memory space, bytes, byte offset, purpose."""

    name: str
    shape: str
    space: str
    size_bytes: int
    offset_bytes: int | None
    tag: str


@dataclass
class Program:
    """A kernel's schedule: bundles in address order, and where each region starts."""

    bundles: list[Bundle]
    targets: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, bundle in enumerate(self.bundles):
            for region in bundle.starts:
                self.targets.setdefault(region, index)

    def delay_slots(self, index: int, target: int) -> int:
        """Bundles that issue between a branch in bundle `index` and bundle `target`.

        The hardware has six. Where the compiler could not fill them, one empty bundle stands for
        all that are missing and the code after the branch follows at once: a region that starts
        there ends the window, and so does, after a loop's end, code outside of the loop. A copy, a
        semaphore or a scope's start behind the empty bundle of a branch that skips code is of that
        code.
        """
        loop_depth = self.bundles[target].depth if target <= index else 0
        following = self.bundles[index + 1 : index + 1 + BRANCH_DELAY]
        behind_empty = 0
        for count, bundle in enumerate(following):
            own = [i for i in bundle.instructions if not i.predicate and not _is_mark(i)]
            if behind_empty and (bundle.starts or (own and bundle.depth < loop_depth)):
                return count
            if behind_empty and target > index and any(_has_effect(i.opcode) for i in own):
                return behind_empty
            if not bundle.instructions:
                behind_empty = count + 1
        return BRANCH_DELAY

    @property
    def slots(self) -> Counter[str]:
        """Instructions per issue slot, each bundle counted once."""
        total: Counter[str] = Counter()
        for bundle in self.bundles:
            total.update(bundle.slots)
        return total


def _is_mark(instruction: Instruction) -> bool:
    """A trace mark that tells nothing of where it stands: all but a scope's start."""
    return instruction.opcode == "vtrace" and "TraceMeStart" not in instruction.comment


def _has_effect(opcode: str) -> bool:
    return opcode.startswith(("dma.", "vsync", "vwait", "sst", "vtrace"))
