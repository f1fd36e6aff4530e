"""Turns scalar instructions into closures over the machine's state, once, before execution."""

import re

from kimi.lab.predict.bundles import BRANCH_DELAY, Bundle, Instruction, Program
from kimi.lab.predict.copies import copy_step
from kimi.lab.predict.machine import State, Step, is_set
from kimi.lab.predict.operands import Operands, Read
from kimi.lab.predict.scalars import (
    ARITHMETIC,
    Pointer,
    Value,
    div_rem,
    immediate,
    number,
    pointer_arithmetic,
    signed,
)

_SMEM = re.compile(r"(\[smem:\[.*?\]\])\s*(.*)", re.S)
_OPERAND = re.compile(r"index: (\d+), kind: (\w+)")
_REGISTER = "<no memory space>"  # of an operand that is one word, handed over in a register
_SCOPE = re.compile(r"TraceMe(Start|End)\((.*?)\)")
# Trace words of named scopes carry their kind in the top byte; others are the compiler's own.
_SCOPE_START, _SCOPE_END = 0xB8, 0xC8
_SCALAR = ("s", "p", "dma.", "int_to_ptr", "inlined", "vsync", "vwait", "vdelay", "vtrace")
_IGNORED = frozenset({"sfence", "sfence.stream", "snop", "shalt", "vpush"})


class Decoder:
    """Decodes bundles for one state."""

    def __init__(self, program: Program, state: State) -> None:
        self._program, self._state = program, state
        self._operands = Operands(state)
        self._scope_names: dict[int, str] = {}

    def steps(self) -> list[tuple[Step, ...]]:
        """The scalar steps of every bundle, in the order in which they take effect."""
        return [self._bundle(n, bundle) for n, bundle in enumerate(self._program.bundles)]

    def _bundle(self, site: int, bundle: Bundle) -> tuple[Step, ...]:
        scalar = [i for i in bundle.instructions if _is_scalar(i.opcode)]
        # A loop's phi reads what the branch left in the register; a pointer cast is a name for the
        # value computed beside it.
        scalar.sort(key=lambda i: (i.opcode != "sphi") + i.opcode.startswith("int_to_ptr"))
        steps = [self._guarded(i, step) for i in scalar if (step := self._step(site, i))]
        for branch in (i for i in scalar if i.opcode == "sbr.rel"):
            target = self._program.targets.get(branch.operands[0], site)
            steps.append(self._padding(BRANCH_DELAY - self._program.delay_slots(site, target)))
        return tuple(steps)

    def _padding(self, cycles: int) -> Step:
        state = self._state

        def step() -> None:
            for timer in state.timers:
                timer.pad(cycles, state.site, state.scope)

        return step

    def _guarded(self, instruction: Instruction, step: Step) -> Step:
        if instruction.predicate is None:
            return step
        literal = instruction.predicate.isdigit()
        predicate = self._operands.read(("" if literal else "%") + instruction.predicate)
        negated, result, writes = instruction.negated, instruction.result, self._state.writes
        if result is not None and instruction.otherwise:
            otherwise = self._operands.read("%" + instruction.otherwise)

            def choose() -> None:
                if is_set(predicate()) != negated:
                    step()
                else:
                    writes.append((result, otherwise()))

            return choose

        def guard() -> None:
            if is_set(predicate()) != negated:
                step()

        return guard

    def _step(self, site: int, i: Instruction) -> Step | None:
        opcode = i.opcode
        if opcode in ARITHMETIC:
            return self._arithmetic(i)
        if opcode == "sbr.rel":
            return self._branch(site, i)
        if opcode.startswith("dma."):
            if opcode.startswith("dma.done"):
                return self._wait(i)
            copy = copy_step(self._state, self._operands, i)
            return copy or self._count(self._state.unimplemented, opcode)
        if opcode.startswith(("vsync", "vwait", "vdelay")):
            return self._synchronise(i)
        if opcode == "vtrace":
            return self._trace(i)
        if opcode.startswith("sdivrem"):
            return self._division(i)
        if opcode.startswith("int_to_ptr") and i.result:
            return self._cast(i)
        if opcode == "sphi":
            return self._phi(str(i.result))
        if opcode in ("sld", "sst"):
            return self._memory(i)
        if opcode == "shalt.err":
            return self._count(self._state.halts, i.comment.strip() or "error")
        if opcode in _IGNORED:
            return None
        value = self._value(i)
        if value is None or i.result is None:
            return self._count(self._state.unimplemented, opcode)
        return self._write(i.result, value)

    def _value(self, i: Instruction) -> Read | None:
        """Instructions that only compute a value."""
        opcode, state = i.opcode, self._state
        if opcode == "vpop.sfrf":
            return self._operands.read(i.operands[0])
        if opcode == "spop.drf":
            return self._quotient_or_remainder(i.operands[0].removeprefix("%"))
        if opcode == "spop":
            return state.pop
        if opcode.startswith("inlined_call_operand"):
            match = _OPERAND.search(i.operands[0]) if i.operands else None
            if match and _REGISTER in i.operands[0]:
                words = state.inputs.operands.get(int(match[1]), ())
                if words:
                    return lambda: words[0] & 0xFFFFFFFF
            name = f"{match[2]} {match[1]}" if match else str(i.result)
            pointer = Pointer(opcode.rsplit(".", 1)[-1], name)
            return lambda: pointer
        reads = [self._operands.read(operand) for operand in i.operands]
        if opcode == "scalar_select":
            return lambda: reads[1]() if is_set(reads[0]()) else reads[2]()
        if opcode.startswith("scalar_lea"):
            keep_offset = opcode.endswith((".sflag", ".smem"))
            return lambda: _displaced(reads[0](), reads[1]() if keep_offset else 0)
        return None

    def _cast(self, i: Instruction) -> Step:
        """A name for the value of a register: the register keeps it, if it was written at all."""
        state, read = self._state, self._operands.read(i.operands[0])
        name, register = str(i.result), str(i.result).rsplit("_", 1)[-1]
        moved = register != i.operands[0].rsplit("_", 1)[-1]

        def step() -> None:
            state.commit()
            state.registers[name] = read()
            if moved:
                state.registers[register] = state.registers[name]

        return step

    def _division(self, i: Instruction) -> Step:
        dividend, divisor = (self._operands.read(operand) for operand in i.operands[:2])
        notes, divisions, token = self._state.notes, self._state.divisions, str(i.result)
        # One division can serve both: the unit returns the quotient first.
        parts = {"kDiv": (0,), "kRem": (1,)}.get(i.comment.split()[-1] if i.comment else "", (0, 1))

        def step() -> None:
            by = number(divisor())
            if by == 0:
                notes["integer division by zero"] += 1
            results = div_rem(number(dividend()), by)
            divisions[token] = [results[part] for part in parts]

        return step

    def _quotient_or_remainder(self, token: str) -> Read:
        state = self._state

        def value() -> Value:
            if not state.divisions.get(token):
                state.unknown[f"division {token}"] += 1
                return 0
            return state.divisions[token].pop(0)

        return value

    def _arithmetic(self, i: Instruction) -> Step | None:
        if i.result is None:
            return None
        function, opcode = ARITHMETIC[i.opcode], i.opcode
        first = self._operands.read(i.operands[0])
        second = self._operands.read(i.operands[1]) if len(i.operands) > 1 else (lambda: 0)
        result, writes = i.result, self._state.writes

        def step() -> None:
            a, b = first(), second()
            if isinstance(a, int) and isinstance(b, int):
                writes.append((result, function(a, b)))
            else:
                writes.append((result, pointer_arithmetic(opcode, a, b)))

        return step

    def _write(self, result: str, read: Read) -> Step:
        writes = self._state.writes
        return lambda: writes.append((result, read()))

    def _count(self, counter: dict[str, int], name: str) -> Step:
        def step() -> None:
            counter[name] = counter.get(name, 0) + 1

        return step

    def _phi(self, result: str) -> Step:
        # The bundle's other instructions already read the phi by its name.
        registers, physical = self._state.registers, result.rsplit("_", 1)[-1]

        def step() -> None:
            registers[result] = registers.get(physical, 0)

        return step

    def _branch(self, site: int, i: Instruction) -> Step:
        state, target = self._state, self._program.targets.get(i.operands[0])
        if target is None:
            return self._count(state.notes, f"branch to unknown region {i.operands[0]}")

        branch = target, self._program.delay_slots(site, target)

        def step() -> None:
            state.branch = branch

        return step

    def _wait(self, i: Instruction) -> Step:
        state, key, amount = (
            self._state,
            self._operands.key(i.operands[0]),
            self._operands.read(i.operands[1]),
        )

        def step() -> None:
            semaphore, least = key(), signed(number(amount()))
            for timer in state.timers:
                timer.wait(semaphore, least, state.site, state.scope)

        return step

    def _synchronise(self, i: Instruction) -> Step | None:
        state, opcode = self._state, i.opcode
        if opcode == "vwait.ge":
            return self._wait(i)
        if opcode == "vsyncmov":
            key = self._operands.key(i.operands[0])
            if i.result is None:
                return None
            return self._write(i.result, lambda: state.timers[0].value(key()))
        if opcode == "vdelay":
            cycles = self._operands.read(i.operands[0])

            def delay() -> None:
                for timer in state.timers:
                    timer.now += number(cycles())

            return delay
        if opcode == "vsyncadd.remote":
            return self._signal(i)
        names = {"vsyncadd": "count", "vsyncpa": "assign"}
        if opcode not in names:
            return self._count(state.unimplemented, opcode)
        key, amount, name = (
            self._operands.key(i.operands[0]),
            self._operands.read(i.operands[1]),
            names[opcode],
        )
        actions = [getattr(timer, name) for timer in state.timers]

        def act() -> None:
            semaphore, value = key(), signed(number(amount()))
            for action in actions:
                action(semaphore, value)

        return act

    def _signal(self, i: Instruction) -> Step:
        state = self._state
        target, key = self._operands.read(i.operands[0]), self._operands.key(i.operands[0])
        amount = self._operands.read(i.operands[1])

        def signal() -> None:
            semaphore, value, end = key(), signed(number(amount())), target()
            peer = end.core ^ state.inputs.rank if isinstance(end, Pointer) else 0
            for timer in state.timers:
                timer.signal(semaphore, value, peer)

        return signal

    def _trace(self, i: Instruction) -> Step | None:
        state, word = self._state, immediate(i.operands[0]) or 0
        kind, number_ = word >> 24, word & 0xFFFFFF
        named = _SCOPE.search(i.comment)
        if named:
            started, name = named[1] == "Start", named[2]
        elif kind in (_SCOPE_START, _SCOPE_END):
            # Source annotations displace the names: the line of the scope stands for it.
            started = kind == _SCOPE_START
            name = i.location or f"scope {number_}"
            name = self._scope_names.setdefault(number_, name)
        else:
            return None
        return (lambda: state.enter(name)) if started else (lambda: state.leave(name))

    def _memory(self, i: Instruction) -> Step | None:
        state = self._state
        match = _SMEM.match(", ".join(i.operands))
        if not match:
            return self._count(state.unimplemented, f"{i.opcode} outside SMEM")
        key = self._operands.key(match[1])
        if i.opcode == "sld":
            return self._write(str(i.result), lambda: state.load(key()))
        stored = self._operands.read(match[2].strip(" ,"))

        def store() -> None:
            state.smem[key()] = stored()

        return store


def _is_scalar(opcode: str) -> bool:
    return opcode == "vpop.sfrf" or opcode.startswith(_SCALAR)


def _displaced(pointer: Value, words: Value) -> Value:
    return pointer.moved(signed(number(words))) if isinstance(pointer, Pointer) else pointer
