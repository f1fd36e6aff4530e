"""The schedule table: what each phase waits for, reads, writes and starts; and its checker.

A kernel that forgets a wait computes garbage once in a while; one that forgets a start hangs; one
that leaves a semaphore above zero halts the core. So the kernel starts and waits for copies only by
the names in this table, and the table is proven first, for the whole program of all layers.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from kimi.kernels.buffers import BufferSpec
from kimi.kernels.chip import LANES, ROW_BYTES
from kimi.kernels.errors import PlanError
from kimi.kernels.mesh import Mesh
from kimi.kernels.stream import Stream

Counts = tuple[tuple[str, int], ...]  # copies of a transfer, by its name
_LISTED = 8
_COLLECTIVES = ("_gather", "_scatter")  # what the names of collectives end in


class Kind(StrEnum):
    """Kinds of transfer."""

    LOAD = "load"  # HBM to VMEM
    STORE = "store"  # VMEM to HBM
    ALL_GATHER = "all-gather"  # the same message to all peers
    REDUCE_SCATTER = "reduce-scatter"  # another message to each peer, which sums what it gets

    @property
    def remote(self) -> bool:
        """Whether it is a collective between ranks."""
        return self in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)


@dataclass(frozen=True)
class Message:
    """What one rank sends to one peer.

    Attributes:
      bf16: bfloat16 values per row, two in a word (see `words.pack_bf16`).
      words: 32-bit values per row, behind the former.
      tokens: rows of the model in it; 0 for those of the step.
    """

    bf16: int = 0
    words: int = 0
    tokens: int = 0

    def rows(self, tokens: int) -> int:
        """Rows of 128 words, for a step of `tokens` rows of the model."""
        return (self.tokens or tokens) * -(-(self.packed_words + self.words) // LANES)

    @property
    def packed_words(self) -> int:
        """Words of `bf16`."""
        return -(-self.bf16 // 2)


@dataclass(frozen=True)
class Transfer:
    """Copies under one name. Each has its own semaphore, or a pair of them if it is remote.

    Attributes:
      name: of the table.
      kind: see `Kind`.
      source, target: VMEM buffers it reads and writes; "" for HBM.
      slots: copies that may be under way at once.
      copies: descriptors of one such copy, all on its semaphore: a row each, or a sequence each.
      message: of a collective.
    """

    name: str
    kind: Kind
    source: str = ""
    target: str = ""
    slots: int = 1
    copies: int = 1
    message: Message = field(default=Message())

    def sent_bytes(self, mesh: Mesh, tokens: int) -> int:
        """Bytes that one rank sends in one collective."""
        return len(mesh.offsets) * self.message.rows(tokens) * ROW_BYTES


def collective_buffers(
    transfers: Sequence[Transfer], mesh: Mesh, tokens: int, life: tuple[str, str]
) -> Iterator[BufferSpec]:
    """Send and receive buffers, one pair per collective: a message of a peer is never in doubt."""
    words = np.dtype(np.uint32)
    for t in (t for t in transfers if t.kind.remote):
        rows = t.message.rows(tokens)
        sends = mesh.ranks if t.kind is Kind.REDUCE_SCATTER else 1
        yield BufferSpec(t.source, (sends, rows, LANES), words, *life)
        yield BufferSpec(t.target, (mesh.ranks, rows, LANES), words, *life, remote=True)


@dataclass(frozen=True)
class Step:
    """One phase of the program, in this order: wait, compute, start.

    Only transfers with several slots do not keep to it when a phase has waits and starts of them:
    these alternate, copy by copy, and every start takes the slot of a copy that was used up.

    Attributes:
      phase: name.
      waits, starts: copies.
      reads, writes: buffers the computation uses.
    """

    phase: str
    waits: Counts = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    starts: Counts = ()


def collectives(messages: Mapping[str, Message]) -> Iterator[Transfer]:
    """The collectives of these names, which end in what they are, with their buffers."""
    for name, message in messages.items():
        kind = Kind.REDUCE_SCATTER if name.endswith("_scatter") else Kind.ALL_GATHER
        yield Transfer(name, kind, f"{name}_send", f"{name}_receive", message=message)


Copies = Sequence[str | tuple[str, int]]  # names, or names and counts


def phase_step(
    phase: str,
    waits: Copies = (),
    reads: Sequence[str] = (),
    writes: Sequence[str] = (),
    starts: Copies = (),
) -> Step:
    """A step; it also reads what the collectives it waits for have brought, and fills their buffers
    before it starts them: the own part goes where it will be read."""
    waited, started = (
        tuple((copy, 1) if isinstance(copy, str) else copy for copy in copies)
        for copies in (waits, starts)
    )
    got = (f"{name}_receive" for name, _ in waited if name.endswith(_COLLECTIVES))
    sent = (
        f"{name}_{side}" for name, _ in started if name.endswith(_COLLECTIVES)
        for side in ("send", "receive")
    )  # fmt: skip
    return Step(phase, waited, (*got, *reads), (*writes, *sent), started)


def sum_step(phase: str, scattered: str, then: str) -> Step:
    """Sums what a reduce-scatter brought and sends the sum to all."""
    return phase_step(phase, [scattered], starts=[then])


def in_order(steps: Iterable[Step], order: Sequence[str]) -> tuple[Step, ...]:
    """The steps of the phases in `order`."""
    by_phase = {step.phase: step for step in steps}
    return tuple(by_phase[phase] for phase in order)


def _matrices_of(phase: str, stream: Stream) -> tuple[str, ...]:
    """The matrices that a phase multiplies by: those of its name, and absorbed MLA ones."""
    prefixes = {"mla_query": ("mla_query", "mla_key_"), "mla_out": ("mla_value_", "mla_out")}
    names = prefixes.get(phase, (phase,))
    return tuple(m.name for m in stream.matrices if m.name.startswith(names))


def with_tiles(steps: Sequence[Step], stream: Stream) -> Iterator[Step]:
    """Adds the tiles: a phase waits for those it reads first, refills those it reads last."""
    for step in steps:
        names = _matrices_of(step.phase, stream)
        if not names:
            yield step
            continue
        arrive, release = stream.arrivals(names), stream.releases(names)
        yield replace(
            step,
            waits=(*step.waits, ("tiles", arrive)),
            reads=(*step.reads, "ring"),
            starts=(*step.starts, ("tiles", release)),
        )


def limited(steps: Sequence[Step], most: Mapping[str, int]) -> tuple[Step, ...]:
    """The steps without what they would start beyond `most` copies of a transfer."""
    left, out = dict(most), []
    for step in steps:
        starts = []
        for name, count in step.starts:
            if name in left:
                count = min(count, left[name])
                left[name] -= count
            starts.append((name, count))
        out.append(replace(step, starts=tuple(starts)))
    return tuple(out)


@dataclass(frozen=True)
class Round:
    """One collective of a layer: what is computed between its start and its wait."""

    transfer: Transfer
    cover: tuple[str, ...]


class _Checker:
    """Runs through the program and notes everything that is wrong."""

    def __init__(
        self,
        transfers: Mapping[str, Transfer],
        buffers: Mapping[str, BufferSpec],
        phases: Sequence[str],
    ):
        self.transfers, self.buffers, self.phases = transfers, buffers, phases
        self.problems: list[str] = []
        self.under_way: Counter[str] = Counter()
        self.held: Counter[str] = Counter()  # slots waited for and not yet given up
        self.started: dict[str, int] = {}  # collective -> step of its last start
        self.waited: dict[str, int] = {}
        self.read: dict[str, int] = {}  # buffer -> step of its last read

    def note(self, step: Step, text: str) -> None:
        self.problems.append(f"{step.phase}: {text}")

    def run(self, program: Sequence[Step]) -> list[str]:
        for index, step in enumerate(program):
            self.waits(step, index)
            self.computes(step, index)
            self.starts(step, index)
        for name, count in self.under_way.items():
            if count > 0:
                self.problems.append(f"end: semaphore of {name}: {count} never waited for")
        return self.problems

    def waits(self, step: Step, index: int) -> None:
        starts = self.alternating(step)
        for name, count in step.waits:
            for i in range(max(count, starts.get(name, 0))):
                if i < count:
                    self.wait(step, name)
                if i < starts.get(name, 0):
                    self.start(step, self.transfers[name], index)
            self.waited[name] = index

    def alternating(self, step: Step) -> dict[str, int]:
        """Starts of a step that alternate with its waits."""
        waits = dict(step.waits)
        return {n: k for n, k in step.starts if n in waits and self.transfers[n].slots > 1}

    def wait(self, step: Step, name: str) -> None:
        if not self.under_way[name]:
            self.note(step, f"waits for {name}, of which none was started")
            return
        self.under_way[name] -= 1
        self.held[name] += 1

    def start(self, step: Step, transfer: Transfer, index: int) -> None:
        name = transfer.name
        self.held[name] -= self.held[name] > 0
        if self.under_way[name] + self.held[name] >= transfer.slots:
            self.note(step, f"starts {name} without a free slot: {transfer.slots} are under way "
                      "or in use")  # fmt: skip
        self.target_free(step, transfer, index)
        self.under_way[name] += 1
        if transfer.kind.remote:
            self.started[name] = index

    def computes(self, step: Step, index: int) -> None:
        for name in (*step.reads, *step.writes):
            self.alive(step, name)
        for name in step.reads:
            for transfer in self.moving(target=name):
                self.note(step, f"reads {name} while {transfer.name} still fills it")
            self.read[name] = index
        for name in step.writes:
            for transfer in (*self.moving(target=name), *self.moving(source=name)):
                self.note(step, f"writes into {name}, in use by {transfer.name}")

    def starts(self, step: Step, index: int) -> None:
        done = self.alternating(step)
        for name, count in step.starts:
            transfer = self.transfers[name]
            for buffer in filter(None, (transfer.source, transfer.target)):
                self.alive(step, buffer)
            for _ in range(count if name not in done else 0):
                self.start(step, transfer, index)

    def target_free(self, step: Step, transfer: Transfer, index: int) -> None:
        """A target must be at rest; and peers must know that it is, if it is theirs to fill."""
        if not transfer.target:
            return
        for other in self.moving(target=transfer.target) + self.moving(source=transfer.target):
            if other.name != transfer.name:
                self.note(step, f"{transfer.name} writes into {transfer.target}, in use by "
                          f"{other.name}")  # fmt: skip
        last = self.read.get(transfer.target)
        if not transfer.kind.remote or last is None:
            return
        # Peers start this collective once an earlier one has told them that we are past our
        # reading.
        told = any(
            start >= last and start <= self.waited.get(name, -1) <= index
            for name, start in self.started.items()
            if name != transfer.name and not self.under_way[name]
        )
        if not told:
            self.note(step, f"{transfer.name}: peers may write into {transfer.target} before this "
                      "rank has read it: no other collective lies between")  # fmt: skip

    def moving(self, source: str = "", target: str = "") -> list[Transfer]:
        """Transfers under way that touch a buffer; slots of a ring do not disturb each other."""
        name = source or target
        if name not in self.buffers or self.buffers[name].slots > 1:
            return []
        return [
            t
            for t in self.transfers.values()
            if self.under_way[t.name] and (t.source == name if source else t.target == name)
        ]

    def alive(self, step: Step, name: str) -> None:
        buffer = self.buffers.get(name)
        if buffer is None:
            self.note(step, f"uses {name}, which is not in the buffer table")
            return
        first, now, last = (self.phases.index(p) for p in (buffer.first, step.phase, buffer.last))
        if not first <= now <= last:
            self.note(step, f"uses {name}, which lives only from {buffer.first} to {buffer.last}")


def problems(
    program: Sequence[Step],
    transfers: Sequence[Transfer],
    buffers: Sequence[BufferSpec],
    phases: Sequence[str],
) -> list[str]:
    """Everything wrong with a program, one line each; none if it is sound.

    Found are: waits without a start, starts without room, semaphores not drained, reads of what is
    still being filled, writes into what is still being read or filled, uses outside a buffer's
    life, and collectives whose peers could overtake a reader.
    """
    checker = _Checker({t.name: t for t in transfers}, {b.name: b for b in buffers}, phases)
    return checker.run(program)


def check(
    program: Sequence[Step],
    transfers: Sequence[Transfer],
    buffers: Sequence[BufferSpec],
    phases: Sequence[str],
) -> None:
    """Raises PlanError with the first of the `problems`, if there are any."""
    wrong = problems(program, transfers, buffers, phases)
    if wrong:
        more = f"; and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        raise PlanError(f"schedule: {'; '.join(wrong[:_LISTED])}{more}")


def rounds(steps: Sequence[Step], transfers: Sequence[Transfer]) -> Iterator[Round]:
    """The collectives of a layer, in the order of their starts, with the phases that cover them."""
    remote = {t.name: t for t in transfers if t.kind.remote}
    for i, step in enumerate(steps):
        for name, _ in step.starts:
            if name in remote:
                end = next(j for j in range(i + 1, len(steps)) if name in dict(steps[j].waits))
                yield Round(remote[name], tuple(s.phase for s in steps[i + 1 : end]))
