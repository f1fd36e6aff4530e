"""Turns the compiler's refusals into one clear line, with its figures kept for the report."""

import re
from dataclasses import dataclass

from kimi.errors import KimiError


@dataclass(frozen=True)
class LargestBuffer:
    """One line of the compiler's list of largest allocations."""

    size: str
    shape: str
    tag: str


class CompileError(KimiError):
    """The compiler refused a program.

    Attributes:
      kind: the compiler's own name for it, e.g. `CompileTimeScopedVmemOom`.
      space: memory space that ran out, or None.
      largest: the largest buffers the compiler lists, possibly none.
      detail: its whole message.
    """

    def __init__(
        self,
        line: str,
        *,
        kind: str = "CompileError",
        space: str | None = None,
        largest: tuple[LargestBuffer, ...] = (),
        detail: str = "",
    ) -> None:
        super().__init__(line)
        self.kind, self.space, self.largest, self.detail = kind, space, largest, detail


_SCOPED = re.compile(r"Scoped allocation with size (\S+) and limit (\S+) exceeded .*? by (\S+)\.")
_CAPACITY = re.compile(
    r"Ran out of memory in memory space (\w+)\. Used (\S+) of (\S+) \w+\. "
    r"Exceeded \w+ capacity by (\S+)\."
)
_SINGLE = re.compile(
    r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\).*?"
    r"shape = '([^']*)', space=(\w+).*?tag = '([^']*)'",
    re.S,
)
_HBM = re.compile(
    r"Ran out of memory on HBM, the total memory required for (.+?) \((\S+)\) "
    r"exceeds available HBM \((\S+)\)"
)
_HBM_ARGUMENTS = re.compile(r"Ran out of memory in memory space hbm.*?Used (\S+) of (\S+)", re.S)
_LARGEST = re.compile(r"^\s+\d+\. Size: (\S+)$", re.M)
_SHAPE, _TAG = re.compile(r"^\s+Shape: (\S+)$", re.M), re.compile(r"^\s+Tag: (.*)$", re.M)
_NAMED = re.compile(r"E\d{4}:\s*(\w+):")
_MOSAIC = re.compile(r"Mosaic failed to compile TPU kernel[^:]*?:?\s*(.*?)(?:\n|$)", re.S)
_SPACES = {"sflag": "semaphore memory (sflag)"}


def explain(message: str, where: str) -> CompileError:
    """The `CompileError` for a compiler message about the program called `where`."""
    named = _NAMED.search(message)
    kind = named[1] if named else "CompileError"
    largest = _largest(message)

    def error(line: str, name: str, space: str | None = None) -> CompileError:
        text = f"{where}: {line}"
        return CompileError(text, kind=name, space=space, largest=largest, detail=message)

    if m := _SCOPED.search(message):
        return error(
            f"VMEM of the kernel: expected at most {m[2]}iB, found {m[1]}iB ({m[3]}iB too much)",
            kind,
            "vmem",
        )
    if m := _HBM.search(message):
        found = f"HBM for {m[1]}: expected at most {m[3]}iB, found {m[2]}iB"
        return error(found, "CompileTimeHbmOom", "hbm")
    if m := _CAPACITY.search(message):
        space, used, limit, excess = m.groups()
        line = f"{space.upper()}: expected at most {limit}iB, found {used}iB ({excess}iB too much)"
        return error(line, f"CompileTime{space.capitalize()}Oom", space)
    if m := _HBM_ARGUMENTS.search(message):
        return error(f"HBM: expected at most {m[2]}iB, found {m[1]}iB", "CompileTimeHbmOom", "hbm")
    if m := _SINGLE.search(message):
        size, limit, shape, space, tag = m.groups()
        name = _SPACES.get(space, space.upper())
        line = f"{name}: {tag} {shape} needs {size} bytes, expected at most {limit} in all"
        return error(line, f"CompileTime{space.capitalize()}Oom", space)
    if m := _MOSAIC.search(message):
        return error(f"Mosaic refuses the kernel: {m[1].strip()[:300]}", "MosaicError")
    first = message.strip().splitlines()[0] if message.strip() else "no message"
    return error(f"the compiler failed: {first[:300]}", kind)


def _largest(message: str) -> tuple[LargestBuffer, ...]:
    heads = list(_LARGEST.finditer(message))
    found = []
    for number, head in enumerate(heads, start=1):
        end = heads[number].start() if number < len(heads) else len(message)
        block = message[head.end() : end]
        shape, tag = _SHAPE.search(block), _TAG.search(block)
        found.append(LargestBuffer(head[1], shape[1] if shape else "", tag[1] if tag else ""))
    return tuple(found)
