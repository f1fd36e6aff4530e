"""A compiled module as XLA prints it: computations, and the scheduled instructions of each."""

import re
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

from kimi.errors import InputError

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_END = re.compile(r"^}(?:, execution_thread=.*)?\s*$")
_LINE = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = ")
_NAMES = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\](\{[^}]*\})?")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|branch_computations)=(\{[^}]*\}|%[\w.\-]+)"
)
_SCOPE = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CONSTANT = re.compile(r" constant\((\d+)\)")
# What two instructions that are compiled to the same code may differ in.
_NOISE = re.compile(r", (?:metadata|backend_config|frontend_attributes)=.*$")
_VMEM = "S(1)"
_BITS = {"pred": 8, "token": 0}


@dataclass(frozen=True)
class Array:
    """An array of an instruction's result.

    Attributes:
      dtype: as XLA writes it, such as `bf16`.
      shape: its sides.
      hbm: it lies in HBM, not in VMEM.
    """

    dtype: str
    shape: tuple[int, ...]
    hbm: bool

    @property
    def nbytes(self) -> int:
        """Without padding."""
        digits = re.search(r"[0-9]+", self.dtype)
        bits = _BITS.get(self.dtype, int(digits[0]) if digits else 8)
        return -(-prod(self.shape) * bits // 8)


@dataclass(frozen=True)
class Instruction:
    """A scheduled instruction.

    Attributes:
      name: its own, and that of its dumped schedule.
      opcode: such as `fusion`.
      shape: of its result, as XLA writes it.
      operands: names of instructions.
      called: names of computations: of a loop condition and body, of a conditional the branches,
        otherwise one or none.
      text: the whole line.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    text: str

    @property
    def results(self) -> tuple[Array, ...]:
        """Arrays of the result, those of a tuple in their order."""
        return arrays(self.shape)

    @property
    def path(self) -> str:
        """Named scopes and the operation that it came from; may be empty."""
        found = _SCOPE.search(self.text)
        return found[1] if found else ""

    @property
    def target(self) -> str:
        """Of a custom call; else empty."""
        found = _TARGET.search(self.text)
        return found[1] if found else ""


@dataclass(frozen=True)
class Computation:
    """Instructions in the order in which they run."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """The instructions."""
        return {i.name: i for i in self.instructions}


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
      entry: name of the computation that it begins with.
      computations: by name.
    """

    entry: str
    computations: dict[str, Computation]

    def likeness(self, where: Computation, instruction: Instruction) -> str:
        """A text that is the same for two instructions which do the same.

        The compiler makes code for one of such instructions only.
        """
        shapes = [where.by_name[o].shape for o in instruction.operands if o in where.by_name]
        parts = [_anonymous(instruction.text), *shapes]
        for name in instruction.called:
            parts += [_anonymous(i.text) for i in self.computations[name].instructions]
        return "\n".join(parts)

    def trips(self, loop: Instruction) -> int | None:
        """How often the body of a `while` runs; None if that is known at run time only."""
        condition = self.computations[loop.called[0]]
        root = condition.instructions[-1]
        bound = condition.by_name[root.operands[-1]] if root.operands else root
        found = _CONSTANT.search(bound.text)
        return int(found[1]) if root.opcode == "compare" and found else None


def _anonymous(line: str) -> str:
    text = _NOISE.sub("", line.strip().removeprefix("ROOT "))
    # Names of parameters carry numbers too.
    return re.sub(r"parameter\(\d+\)", "parameter", _NAMES.sub("%", text))


def module_file(dump: Path, target: int = 0) -> Path:
    """Where the module of the so-many-th target of a job lies among the schedules."""
    return dump / f"{target}.module"


def parse_module(text: str) -> Module:
    """Reads what `compiled.as_text()` prints.

    Raises:
      InputError: there is no entry computation.
    """
    entry, found = "", dict[str, Computation]()
    name, lines = "", list[str]()
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name, lines = head[2], []
            entry = name if head[1] else entry
        elif _END.match(line) and name:
            parsed = (_instruction(x) for x in lines)
            found[name] = Computation(name, tuple(i for i in parsed if i))
            name = ""
        elif name and (_LINE.match(line) or not lines):
            lines.append(line)
        elif name:
            # An attribute, such as the configuration of a kernel, goes on over several lines.
            lines[-1] += line
    if not entry:
        raise InputError("compiled module: expected an ENTRY computation, found none")
    return Module(entry, found)


def _instruction(line: str) -> Instruction | None:
    head = _LINE.match(line)
    if not head:
        return None
    shape, rest = _first(line[head.end() :])
    opcode, _, rest = rest.strip().partition("(")
    operands, attributes = _first("(" + rest)
    found = sorted(_CALLED.finditer(attributes), key=lambda m: m[0].startswith("body"))
    called = tuple(name for match in found for name in _NAMES.findall(match[1]))
    return Instruction(head[1], opcode, shape, tuple(_NAMES.findall(operands)), called, line)


def _first(text: str) -> tuple[str, str]:
    """What stands in the parentheses at the beginning, or up to the first space; and the rest."""
    if not text.startswith("("):
        first, _, rest = text.partition(" ")
        return first, rest
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: at + 1], text[at + 1 :]
    return text, ""


def arrays(shape: str) -> tuple[Array, ...]:
    """The arrays of a result's shape as XLA writes it."""
    return tuple(
        Array(kind, tuple(int(n) for n in sides.split(",") if n), _VMEM not in (layout or ""))
        for kind, sides, layout in _ARRAY.findall(shape)
    )
