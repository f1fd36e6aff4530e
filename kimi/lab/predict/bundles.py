"""Reads the compiler's final schedule: VLIW bundles and the allocation table.

The text is what libtpu writes for the passes `final_bundles` and `post-delay-converter`:

    0x11   : > { %s1_s2 = sadd.s32 1, %s0_s3 /* note */  ;;  %5 = sbr.rel (%p4_p0) target = ... }

A `>` counts one level of loop nesting, comments carry source locations, trace scopes and the
regions that start at the bundle, and a value's name ends in the physical register that holds it.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from kimi.errors import InputError
from kimi.lab.predict.units import UnitOp, slot_of, unit_op

_HEADER_END = "control target key end"
_BUNDLE = re.compile(r"^\s*(0x[0-9a-f]+|0)\s*(?:[A-Z]{2})?\s*:\s?([> ]*)\{", re.M)
_COMMENT = re.compile(r"/\*(.*?)\*/", re.S)
_MARK = re.compile("\x01(\\d+)\x02")
_INSTRUCTION = re.compile(r"(?:%(\S+) = )?([a-z_0-9.]+)\s*(.*)$", re.S)
_ATTRIBUTE = re.compile(r"\[(?:thread:\$\d+|resolvable:\$\w+)\]\s*")
_PREDICATE = re.compile(r"\(\s*(!?)%(p\w+)\s*(?:,\s*%(\w+))?\s*\)\s*,?|\(\s*(!?)(\d+)\s*\)\s*,?")
_TARGET = re.compile(r"target = \$region(\d+)")
_LOCATION = re.compile(r'loc\("([^"]*)":(\d+):')
_STARTED_REGION = re.compile(r"region (\d+)")
_ALLOCATION = re.compile(
    r"#(allocation\w+) \[shape = '([^']*)', space=(\w+), size = (0x[0-9a-f]+|\d+)"
    r"(?:, offset = (0x[0-9a-f]+|\d+))?[^\]]*?tag = '([^']*)'",
    re.S,
)

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


def parse_bundles(text: str, where: str = "bundles") -> Program:
    """Parses a `final_bundles` dump.

    Raises:
      InputError: no bundle in the text; `where` names it.
    """
    header = text.find(_HEADER_END)
    if header >= 0:
        text = text[header + len(_HEADER_END) :]
    comments: list[str] = []

    def stash(match: re.Match[str]) -> str:
        comments.append(match[1])
        return f"\x01{len(comments) - 1}\x02"

    # Comments hold braces, commas and ";;": they leave the text before it is cut into instructions.
    text = _COMMENT.sub(stash, text)
    heads = list(_BUNDLE.finditer(text))
    if not heads:
        raise InputError(f"{where}: expected VLIW bundles ('0x1 : {{ ... }}'), found none")
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return Program(
        [_bundle(h, text[h.end() : e], comments) for h, e in zip(heads, ends, strict=True)]
    )


def _bundle(head: re.Match[str], body: str, comments: list[str]) -> Bundle:
    inner, _, after = body.rpartition("}")
    starts = [
        region
        for mark in _MARK.finditer(after)
        for segment in comments[int(mark[1])].split("::")
        if "Start" in segment
        for region in _STARTED_REGION.findall(segment)
    ]
    parsed = [p for part in inner.split(";;") if part.strip() for p in _instruction(part, comments)]
    instructions = [instruction for instruction, _ in parsed]
    ops = (unit_op(i.opcode, _token(i.result), text) for i, text in parsed)
    lines = Counter(i.location for i in instructions if i.location)
    return Bundle(
        address=int(head[1], 16),
        depth=head[2].count(">"),
        instructions=instructions,
        starts=starts,
        location=lines.most_common(1)[0][0] if lines else None,
        slots=Counter(slot_of(i.opcode) for i in instructions),
        unit_ops=tuple(op for op in ops if op),
    )


def _token(result: str | None) -> str | None:
    return re.sub(r"\W.*", "", result) if result else None


def _instruction(part: str, comments: list[str]) -> Iterator[tuple[Instruction, str]]:
    comment = " ".join(comments[int(mark[1])] for mark in _MARK.finditer(part))
    text = _MARK.sub("", part).strip()
    match = _INSTRUCTION.match(text)
    if not match:
        return
    result, opcode, rest = match.groups()
    rest = _ATTRIBUTE.sub("", rest)
    predicate, negated, otherwise = None, False, None
    if guard := _PREDICATE.search(rest):
        predicate, otherwise = guard[2] or guard[5], guard[3]
        negated = bool(guard[1] or guard[4])
        rest = rest[: guard.start()] + rest[guard.end() :]
    if target := _TARGET.search(rest):
        operands = [target[1]]
    else:
        operands = _split(rest)
    line = _LOCATION.search(comment)
    location = f"{line[1].rsplit('/', 1)[-1]}:{line[2]}" if line else None
    yield (
        Instruction(result, opcode, operands, predicate, negated, otherwise, comment, location),
        text,
    )


def _split(text: str) -> list[str]:
    """Splits at top-level commas."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "[(") - (character in ")]")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    if current.strip():
        parts.append(current.strip())
    return parts


def parse_allocations(text: str) -> list[Allocation]:
    """The buffers of a kernel, from a dump of the pass `post-delay-converter`; may be empty."""
    found: dict[str, Allocation] = {}
    for name, shape, space, size, offset, tag in _ALLOCATION.findall(text):
        at = int(offset, 0) if offset else None
        found.setdefault(name, Allocation(name, shape, space, int(size, 0), at, tag))
    return list(found.values())
