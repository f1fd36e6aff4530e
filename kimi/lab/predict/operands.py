"""Operand texts as functions that read the machine's state."""

import re
from collections.abc import Callable

from kimi.lab.predict.machine import State
from kimi.lab.predict.scalars import Pointer, Value, immediate, number
from kimi.lab.predict.timing import SemaphoreKey

_ALLOCATION = re.compile(r"#(allocation\w+)(?: \+ \$(0x[0-9a-f]+))?(?: \+ (%\S+?))?\]")
_INDIRECT = re.compile(r"\[(%\w+)(?: \+ \$(0x[0-9a-f]+))?(?: \+ (%\w+))?\]")

Read = Callable[[], Value]


class Operands:
    """Reads operands of one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def read(self, text: str) -> Read:
        """A register (`%s1_s2`), a buffer's address (`[#allocation3 + $0x1]`) or a number."""
        state = self._state
        if text.startswith("%"):
            name, registers = text[1:], state.registers
            physical = name.rsplit("_", 1)[-1]

            def register() -> Value:
                value = registers.get(name)
                if value is None:
                    value = registers.get(physical)
                    if value is None:
                        state.unknown[f"register {name}"] += 1
                        return 0
                return value

            return register
        if text.startswith(("[", "#")):
            match = _ALLOCATION.search(text if text.endswith("]") else text + "]")
            if match:
                pointer = Pointer("alloc", match[1], int(match[2], 16) if match[2] else 0)
                return lambda: pointer
        # An address operand may be followed by the buffer it points into: "1 [#allocation5]".
        word = immediate(text.split()[0]) if text else None
        if word is None:
            return lambda: self._unknown(text)
        return lambda: word

    def _unknown(self, text: str) -> int:
        self._state.unknown[f"operand {text[:40]}"] += 1
        return 0

    def key(self, text: str) -> Callable[[], SemaphoreKey]:
        """The semaphore or SMEM word that an address operand names."""
        match = _ALLOCATION.search(text)
        if match and ("smem" in text or not match[3]):
            name, base = match[1], int(match[2], 16) if match[2] else 0
            if not match[3]:
                return lambda: (name, base)
            index = self.read(match[3])
            return lambda: (name, base + number(index()))
        indirect = _INDIRECT.search(text)
        pointer = self.read(indirect[1] if indirect else text)
        base = int(indirect[2], 16) if indirect and indirect[2] else 0
        step = self.read(indirect[3]) if indirect and indirect[3] else (lambda: 0)

        def resolve() -> SemaphoreKey:
            value = pointer()
            offset = base + number(step())
            if isinstance(value, Pointer):
                return value.name, value.offset + offset
            return "absolute", value + offset

        return resolve
