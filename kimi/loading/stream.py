"""Streams a checkpoint into a sink: reading, packing and writing at once, in bounded memory.

    readers  take the next item and free memory, read                  (file system)
    workers  check, re-encode, lay out, write to the sink              (processor)

An item waits in memory only between the two. Memory comes in slots of the largest item, of which
there is a fixed number: a reader without a free slot waits, so the bound holds whatever happens.
"""

import collections
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from kimi import values
from kimi.checkpoint import Checkpoint
from kimi.checkpoint.values import check_finite
from kimi.codecs.memory import zeroed
from kimi.errors import InputError
from kimi.kernels.layout import Layout
from kimi.kernels.words import Array
from kimi.loading.crew import Crew
from kimi.loading.errors import LoadError
from kimi.loading.parts import Region, Rows
from kimi.loading.plan import Extent, Item, Totals, locate, plan, totals
from kimi.loading.reading import U8, Files, extent_array, read_item
from kimi.loading.sinks import Sink

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Limits:
    """How much of the machine loading may take.

    Attributes:
      memory_bytes: bound of the memory that files are read into. Beside it every worker holds what
        it is packing, at most twice the largest item; the destination is not counted.
      readers, workers: threads; the defaults suit a network file system, and all processors.

    Raises:
      LoadError: no integer, or one below 1.
    """

    memory_bytes: int = 1 << 30
    readers: int = 4
    workers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "readers", "workers"):
            try:
                values.integer(name, getattr(self, name), 1)
            except InputError as e:
                raise LoadError(str(e)) from None

    def slots(self, item_bytes: int) -> int:
        """Items in memory at once. Raises LoadError if it is not even one."""
        found = min(self.memory_bytes // item_bytes, self.readers + self.workers + 2)
        if not found:
            raise LoadError(
                f"memory: expected room for an item of {item_bytes} bytes at least, found a bound "
                f"of {self.memory_bytes}"
            )
        return found


def ranks_of(layout: Layout, ranks: Iterable[int]) -> tuple[int, ...]:
    """The ranks, each once. Raises InputError if there is no such rank."""
    last = layout.mesh.ranks - 1
    if not isinstance(ranks, Iterable):
        raise InputError(f"ranks: expected some of 0 to {last}, found {values.shown(ranks)}")
    return tuple(dict.fromkeys(values.integer("rank", rank, 0, last) for rank in ranks))


def checkpoint_totals(
    layout: Layout, checkpoint: Checkpoint, ranks: Iterable[int], only: Iterable[int] | None = None
) -> Totals:
    """What `stream` will read. Raises CheckpointError; InputError if there is no such rank."""

    def size(region: Region) -> int:
        return locate(checkpoint, region).nbytes

    return totals(layout, ranks_of(layout, ranks), size, only)


def stream(
    layout: Layout,
    checkpoint: Checkpoint,
    ranks: Iterable[int],
    sink: Sink,
    limits: Limits,
    progress: Progress,
    only: Iterable[int] | None = None,
) -> None:
    """Writes all that `ranks` hold into `sink`.

    Args:
      progress: called in this thread, several times a second, with the bytes read so far; what it
        raises ends the work.
      only: pieces, as in `plan`.
    Raises:
      InputError: there is no such rank.
      LoadError, CheckpointError, CodecError, LayoutError: the first that went wrong, with the file
        or the tensor. All threads have ended then.
    """
    ranks = ranks_of(layout, ranks)
    only = None if only is None else tuple(only)
    item_bytes = checkpoint_totals(layout, checkpoint, ranks, only).item_bytes
    items = plan(layout, checkpoint, ranks, only)
    with Files() as files:
        flow = _Flow(items, files, checkpoint, sink, item_bytes, limits)
        flow.crew.start(flow.read, limits.readers)
        flow.crew.start(flow.work, limits.workers)
        flow.crew.wait(lambda: progress(flow.done_bytes))
        progress(flow.done_bytes)


class _Flow:
    """What the threads share."""

    def __init__(
        self, items: Iterable[Item], files: Files, checkpoint: Checkpoint, sink: Sink,
        item_bytes: int, limits: Limits,
    ):  # fmt: skip
        self.crew = Crew()
        self.done_bytes = 0
        self._items = iter(items)
        self._files, self._checkpoint, self._sink = files, checkpoint, sink
        self._free = collections.deque(
            zeroed((item_bytes,), np.uint8) for _ in range(limits.slots(item_bytes))
        )
        self._ready: collections.deque[tuple[Item, U8]] = collections.deque()
        self._reading = limits.readers

    def read(self) -> None:
        """A reader."""
        try:
            while (taken := self._take()) is not None:
                item, slot = taken
                read_item(self._files, item, slot, self.crew.check)
                with self.crew.changed:
                    self._ready.append((item, slot))
                    self.crew.changed.notify_all()
        finally:
            with self.crew.changed:
                self._reading -= 1
                self.crew.changed.notify_all()

    def work(self) -> None:
        """A worker."""
        while (ready := self._next()) is not None:
            item, slot = ready
            self._pack(item, slot)
            with self.crew.changed:
                self.done_bytes += item.nbytes
                self._free.append(slot)
                self.crew.changed.notify_all()

    def _take(self) -> tuple[Item, U8] | None:
        """The next item and memory for it; None at the end."""
        with self.crew.changed:
            while not self._free:
                self.crew.check()
                self.crew.changed.wait()
            self.crew.check()
            item = next(self._items, None)
            return None if item is None else (item, self._free.popleft())

    def _next(self) -> tuple[Item, U8] | None:
        with self.crew.changed:
            while not self._ready:
                self.crew.check()
                if not self._reading:
                    return None
                self.crew.changed.wait()
            self.crew.check()
            return self._ready.popleft()

    def _pack(self, item: Item, slot: U8) -> None:
        for part, uses in zip(item.parts, item.uses, strict=True):
            values: dict[str, list[Rows]] = {}
            for i in uses:
                extent = item.extents[i]
                rows = self._rows(extent, extent_array(item, i, slot))
                values.setdefault(extent.region.tensor, []).append(rows)
                self.crew.check()
            part.pack(values, self._sink)

    def _rows(self, extent: Extent, value: Array) -> Rows:
        """A region in its place, checked."""
        rows = extent.region.rows
        first = 0 if rows is None else rows[0]
        check_finite(f"{extent.path}: {extent.stored}", value, first)
        return Rows(self._checkpoint.shaped(extent.stored, value) if rows is None else value, first)
