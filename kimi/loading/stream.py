"""Streams a checkpoint: reading, packing and writing at once, in bounded memory.

Each thread of a pool takes an item, reads it (at most `Limits.readers` at a time), and waits until
one of `Limits.workers` other threads has checked, re-encoded, laid out and written it. A thread
has memory for one item, of the size of the largest, so the bound holds whatever happens.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Semaphore

import numpy as np

from kimi import values
from kimi.checkpoint import Checkpoint
from kimi.checkpoint.values import check_finite
from kimi.codecs.memory import scratch
from kimi.errors import InputError
from kimi.kernels.layout import Layout
from kimi.kernels.words import U8
from kimi.loading.arrays import Writer
from kimi.loading.errors import LoadError
from kimi.loading.parts import Region, Rows
from kimi.loading.plan import Item, Totals, locate, plan, totals
from kimi.loading.reading import Files, extent_array, read_item
from kimi.loading.workers import Progress, WorkerPool


@dataclass(frozen=True)
class Limits:
    """How much of the machine loading may take.

    Attributes:
      memory_bytes: bound of the memory that files are read into. Beside it every worker holds what
        it is packing, at most twice the largest item; the destination is not counted.
      readers, workers: threads that read, and that pack, at a time; the defaults suit a network
        file system, and all processors.

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
        slots = min(self.memory_bytes // item_bytes, self.readers + self.workers + 2)
        if not slots:
            raise LoadError(
                f"memory: expected room for an item of {item_bytes} bytes at least, found a bound "
                f"of {self.memory_bytes}"
            )
        return slots


def ranks_of(layout: Layout, ranks: Iterable[int]) -> tuple[int, ...]:
    """The ranks, each once. Raises InputError if there is no such rank."""
    last = layout.mesh.ranks - 1
    if not isinstance(ranks, Iterable):
        raise InputError(f"ranks: expected some of 0 to {last}, found {values.shown(ranks)}")
    return tuple(dict.fromkeys(values.integer("rank", rank, 0, last) for rank in ranks))


def checkpoint_totals(
    layout: Layout, checkpoint: Checkpoint, ranks: Iterable[int], only: Iterable[int] | None = None
) -> Totals:
    """What `stream` reads. Raises CheckpointError; InputError if there is no such rank."""

    def size(region: Region) -> int:
        return locate(checkpoint, region).nbytes

    return totals(layout, ranks_of(layout, ranks), size, only)


def stream(
    layout: Layout,
    checkpoint: Checkpoint,
    ranks: Iterable[int],
    writer: Writer,
    limits: Limits,
    progress: Progress,
    only: Iterable[int] | None = None,
) -> None:
    """Writes all that `ranks` hold with `writer`.

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
    pool, reading = WorkerPool(), Semaphore(limits.readers)

    def load(item: Item) -> None:
        memory = scratch("item", (item_bytes,), np.uint8)
        with reading:
            read_item(files, item, memory, pool.check)
        packers.submit(_pack, checkpoint, item, memory, writer, pool.check).result()
        pool.add(item.nbytes)

    # Few threads pack, as their memory stays in the cache.
    with Files() as files, ThreadPoolExecutor(limits.workers) as packers:
        items = plan(layout, checkpoint, ranks, only)
        pool.run(items, load, limits.slots(item_bytes), progress)


def _pack(
    checkpoint: Checkpoint, item: Item, memory: U8, writer: Writer, check: Callable[[], None]
) -> None:
    index = {extent.region: i for i, extent in enumerate(item.extents)}
    for part in item.parts:
        values: dict[str, list[Rows]] = {}
        for region in part.regions:
            extent = item.extents[index[region]]
            value = extent_array(item, index[region], memory)
            first = 0 if region.rows is None else region.rows[0]
            check_finite(f"{extent.path}: {extent.stored}", value, first)
            if region.rows is None:
                value = checkpoint.shaped(extent.stored, value)
            values.setdefault(region.tensor, []).append(Rows(value, first))
            check()
        part.pack(values, writer)
