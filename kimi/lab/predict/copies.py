"""DMA instructions: from their operands to a copy on its way."""

from kimi.lab.predict.bundles import Instruction
from kimi.lab.predict.machine import State, Step
from kimi.lab.predict.operands import Operands, Read
from kimi.lab.predict.scalars import Pointer, Value, number
from kimi.lab.predict.timing import Copy, Route

# The operand of a remote copy with its receiver: the chip in the low bits, the core above.
_RECEIVER, _CHIP, _CORE_SHIFT = 6, 0x3FFF, 26


def copy_step(state: State, operands: Operands, i: Instruction) -> Step | None:
    """The step that issues a `dma.*` instruction; None if it is of another form."""
    if len(i.operands) < 4:
        return None
    source, size, target, arrival = (operands.read(text) for text in i.operands[:4])
    general = i.opcode == "dma.general"
    sent = operands.read(i.operands[4]) if general and len(i.operands) > 4 else None
    where = (
        operands.read(i.operands[_RECEIVER]) if general and len(i.operands) > _RECEIVER else None
    )
    direction, into_smem = i.opcode.removeprefix("dma."), i.opcode.endswith("_to_smem")

    def step() -> None:
        start, end, done = source(), target(), arrival()
        if not isinstance(done, Pointer):
            state.notes["copy with unresolved semaphore"] += 1
            done = Pointer("alloc", "unresolved")
        route, kind = _route(direction, start, end, done.remote)
        sender = sent() if sent and route is Route.REMOTE else None
        copy = Copy(
            site=state.site,
            kind=kind,
            route=route,
            granules=number(size()),
            arrival=done.key,
            sent=sender.key if isinstance(sender, Pointer) else None,
            source=_name(start),
            target=_name(end),
            peer=_receiver(where, done) ^ state.inputs.rank if route is Route.REMOTE else 0,
        )
        state.copies[copy] += 1
        if into_smem:
            state.filled(end, start)
        for timer in state.timers:
            timer.start(copy)

    return step


def _receiver(where: Read | None, done: Pointer) -> int:
    """The number of the core that gets the data."""
    word = where() if where else None
    if not isinstance(word, int) or not word:
        return done.core
    return (word & _CHIP) << 1 | word >> _CORE_SHIFT & 1


def _route(direction: str, source: Value, target: Value, remote: bool) -> tuple[Route, str]:
    if direction != "general" and not remote:
        return (Route.HBM if "hbm" in direction else Route.LOCAL), direction
    ends = [_end(pointer) for pointer in (source, target)]
    kind = "_to_".join(ends)
    if remote:
        return Route.REMOTE, f"remote:{kind}"
    return (Route.HBM if "hbm" in ends else Route.LOCAL), f"general:{kind}"


def _end(value: Value) -> str:
    return "hbm" if isinstance(value, Pointer) and value.space == "hbm" else "vmem"


def _name(value: Value) -> str:
    return value.name if isinstance(value, Pointer) else "?"
