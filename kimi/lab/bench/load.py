"""How fast loading is here: every stage alone and all together, against bounds of the same run.

    disk       the same files, read once from beginning to end, when the system has not cached them
    copy       as many bytes into new memory, by as many threads as pack: what placing must cost.
               All of them: systems that take freed memory back make the next use of it dear
    read       the loader's own readers, likewise not cached, nothing packed
    re-encode  MXFP4 to FP8, proven, of weights in memory
    pack       re-encode and layout of experts in memory, into memory that is in use
    place      new memory filled with words, and handed to the devices
    load       everything: from files to devices

All rates count bytes of the checkpoint. Bounds and stages are the fastest of some passes; beside
each rate stands the least processor time of a pass, which says the same where others use the
machine, too.
"""

import gc
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from kimi.checkpoint import Checkpoint, PackedWeight
from kimi.checkpoint.names import target_tensors
from kimi.codecs.memory import zeroed
from kimi.config import ModelConfig
from kimi.config.model import TARGET_PREFIX
from kimi.kernels.chip import LANES
from kimi.kernels.experts import ExpertFormat, ExpertSlice, slice_expert
from kimi.kernels.layout import EXPERT_WEIGHTS, Layout, layer_prefix
from kimi.lab.bench.codecs import reencode
from kimi.loading.arrays import ARRAYS, flat_shape, rank_bytes
from kimi.loading.parts import Region
from kimi.loading.placement import HostMemory
from kimi.loading.plan import plan, totals
from kimi.loading.reading import READ_BYTES, Files, read_item
from kimi.loading.stream import Limits, checkpoint_totals, stream

_PASSES = 3
_SAMPLE_EXPERTS = 4
_COPY_BYTES = 16 << 20  # at a time, where memory is measured
_PARTS = ("packed", "scale")  # of a weight of an expert
_BYTES = {"BF16": 2, "F32": 4, "U8": 1}


@dataclass(frozen=True)
class Figures:
    """Bytes and rates; rates are bytes of the checkpoint per second.

    Attributes:
      source_bytes, destination_bytes: of the checkpoint, and of all ranks.
      disk, cached, copy: bounds: files without and with the system's cache, memory.
      read, reencode, pack, place: stages.
      cold, warm: everything, without and with the system's cache.
      extra_bytes: peak memory beyond the destination while loading.
      bound_bytes: what `Limits` and the workers may take of it.
      threads: workers.
      cpu: seconds of processors, of all threads, per byte of the checkpoint, by the names above.
    """

    source_bytes: int
    destination_bytes: int
    disk: float
    cached: float
    copy: float
    read: float
    reencode: float
    pack: float
    place: float
    cold: float
    warm: float
    extra_bytes: int
    bound_bytes: int
    threads: int
    cpu: dict[str, float]

    @property
    def share(self) -> float:
        """Of the slower of disk and copy that loading without cache reaches."""
        return self.cold / min(self.disk, self.copy)


def measure(checkpoint: Checkpoint, layout: Layout, limits: Limits) -> Figures:
    """Runs everything, with all ranks on one CPU device; takes minutes.

    Raises:
      KimiError: as `stream`.
    """
    ranks = range(layout.mesh.ranks)
    found = checkpoint_totals(layout, checkpoint, ranks)
    destination = rank_bytes(layout) * layout.mesh.ranks
    paths = sorted({checkpoint.path / file for file in checkpoint.shards.files.values()})
    clock = _Clock(found.nbytes)

    def forget() -> None:
        gc.collect()  # what was loaded before
        _drop(paths)

    clock.run("disk", lambda: _read_files(paths), before=forget)
    clock.run("cached", lambda: _read_files(paths))
    clock.run("copy", lambda: _copy(destination, limits.workers))
    clock.run("read", lambda: _read_items(checkpoint, layout, limits.readers), before=forget)
    _time_experts(clock, checkpoint, layout, limits.workers)
    clock.run("place", lambda: _place(layout, limits.workers))
    extra = 0

    def load() -> None:
        nonlocal extra
        extra = max(extra, _load(checkpoint, layout, limits, destination))

    _read_files(paths)
    load()  # so that nothing is compiled in those that count
    clock.run("warm", load, before=gc.collect)
    clock.run("cold", load, before=forget)
    slots = limits.slots(found.item_bytes) * found.item_bytes
    bound = slots + limits.workers * 2 * found.item_bytes
    return Figures(
        source_bytes=found.nbytes, destination_bytes=destination, extra_bytes=extra,
        bound_bytes=bound, threads=limits.workers, cpu=clock.cpu, **clock.rates,
    )  # fmt: skip


class _Clock:
    """Times work.

    Attributes:
      rates: bytes of the checkpoint per second, by name; NaN for what was not run.
      cpu: seconds of processors per byte.
    """

    def __init__(self, nbytes: int):
        self._nbytes = nbytes
        self.rates: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    def run(
        self, name: str, work: Callable[[], object], nbytes: int | None = None,
        before: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        """Takes the fastest, and the cheapest, of some passes over so many bytes."""
        seconds, used = float("inf"), float("inf")
        for _ in range(_PASSES):
            before()
            start, start_cpu = time.perf_counter(), time.process_time()
            work()
            seconds = min(seconds, time.perf_counter() - start)
            used = min(used, time.process_time() - start_cpu)
        size = nbytes or self._nbytes
        self.rates[name], self.cpu[name] = size / seconds, used / size


def _drop(paths: Sequence[Path]) -> None:
    """Makes the system forget these files."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_files(paths: Sequence[Path]) -> None:
    buffer = memoryview(bytearray(READ_BYTES))
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _read_items(checkpoint: Checkpoint, layout: Layout, threads: int) -> None:
    """Reads the items of a load and forgets them."""
    items = iter(list(plan(layout, checkpoint, range(layout.mesh.ranks))))
    lock = threading.Lock()

    def work(index: int) -> None:
        memory = zeroed((0,), np.uint8)
        while True:
            with lock:
                item = next(items, None)
            if item is None:
                return
            if memory.size < item.memory_bytes:
                memory = zeroed((item.memory_bytes,), np.uint8)
            read_item(files, item, memory, lambda: None)

    with Files() as files:
        _in_threads(threads, work)


def _in_threads(threads: int, work: Callable[[int], None]) -> None:
    """Calls `work` with the number of the thread."""
    started = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def _copy(nbytes: int, threads: int) -> None:
    """Writes new memory."""
    source = np.ones(_COPY_BYTES, np.uint8)
    size = nbytes // threads

    def work(index: int) -> None:
        target = zeroed((size,), np.uint8)
        for start in range(0, size, source.size):
            part = target[start : start + source.size]
            part[...] = source[: part.size]

    _in_threads(threads, work)


def _sample(checkpoint: Checkpoint, layout: Layout) -> Iterator[ExpertSlice]:
    """Some experts in memory."""
    for expert in range(min(_SAMPLE_EXPERTS, layout.config.num_experts)):
        stem = f"{layer_prefix(layout.moe_layers[0])}block_sparse_moe.experts.{expert}"
        gate, up, down = (
            PackedWeight(*(checkpoint[f"{stem}.{w}.weight_{part}"].copy() for part in _PARTS))
            for w in EXPERT_WEIGHTS
        )
        yield gate, up, down


def _time_experts(clock: _Clock, checkpoint: Checkpoint, layout: Layout, threads: int) -> None:
    """Re-encoding alone (of whole weights, as they are stored), and with the layout."""
    experts = list(_sample(checkpoint, layout))
    size = sum(w.packed.nbytes + w.scale.nbytes for expert in experts for w in expert)
    mesh, block = layout.mesh, layout.expert_block
    width = layout.config.moe_intermediate_size
    ranks = [r for r in range(mesh.ranks) if mesh.expert_group(r) == 0]
    jobs = [
        slice_expert(expert, *mesh.expert_span(width, rank)) for expert in experts for rank in ranks
    ]
    memory = zeroed((threads, block.rows, LANES), np.uint32)

    def pack(index: int) -> None:
        for weights in jobs[index::threads]:
            block.pack(*weights, memory[index])

    pack(0)
    clock.run("pack", lambda: _in_threads(threads, pack), size)
    if layout.expert_format is not ExpertFormat.FP8:
        clock.rates["reencode"] = float("nan")
        return
    weights = [weight for expert in experts for weight in expert]

    def encode(index: int) -> None:
        for weight in weights[index::threads]:
            reencode(weight.packed, weight.scale)

    clock.run("reencode", lambda: _in_threads(threads, encode), size)


def _place(layout: Layout, threads: int) -> None:
    """Fills new memory and hands it to the devices."""
    source = np.ones(_COPY_BYTES // 4, np.uint32)
    ranks = range(layout.mesh.ranks)
    memory = HostMemory(layout, dict.fromkeys(ranks, jax.local_devices(backend="cpu")[0]))

    def fill(index: int) -> None:
        for rank, name in itertools.product(ranks[index::threads], ARRAYS):
            rows, width = flat_shape(layout, name)
            step = source.size // width
            for start in range(0, rows, step):
                with memory.chunk(rank, name, start, min(step, rows - start)) as part:
                    own = part.reshape(-1).view(np.uint32)
                    own[...] = source[: own.size]

    _in_threads(threads, fill)
    jax.block_until_ready(memory.finish())


def _load(checkpoint: Checkpoint, layout: Layout, limits: Limits, destination: int) -> int:
    """Peak memory beyond the destination."""
    before = _reset_peak()
    ranks = range(layout.mesh.ranks)
    memory = HostMemory(layout, dict.fromkeys(ranks, jax.local_devices(backend="cpu")[0]))
    stream(layout, checkpoint, ranks, memory, limits, lambda done: None)
    weights = jax.block_until_ready(memory.finish())
    extra = max(0, _peak() - before - destination)
    del weights
    return extra


def _status(field: str) -> int:
    """Bytes, from Linux."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> int:
    """Starts the peak anew; returns what is resident."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


# The full model.


@dataclass(frozen=True)
class Estimate:
    """The full checkpoint on several hosts, from figures of this machine.

    Attributes:
      hosts: how many.
      read_bytes, packed_bytes: of one host, at most: read, and of these packed (its own part).
      destination_bytes: of one host.
      read_s, pack_s, place_s: seconds of each, if nothing else went on.
    """

    hosts: int
    read_bytes: int
    packed_bytes: int
    destination_bytes: int
    read_s: float
    pack_s: float
    place_s: float

    @property
    def seconds(self) -> float:
        """The slowest of the three: they overlap."""
        return max(self.read_s, self.pack_s, self.place_s)


def estimate(
    figures: Figures, config: ModelConfig, layout: Layout, hosts: int, disk: float, cores: int
) -> Estimate:
    """Scales to the full model.

    Args:
      figures: packing and copying are taken from here, per thread.
      config: of the full model.
      layout: of the full model, for its mesh.
      disk: bytes per second that a host reads.
      cores: of a host, all of which pack.
    """
    per_host = layout.mesh.ranks // hosts
    sizes = dict(_sizes(config))

    def region_bytes(region: Region) -> int:
        nbytes, rows = sizes[region.tensor]
        own = rows if region.rows is None else region.rows[1] - region.rows[0]
        return nbytes // rows * own

    read = totals(layout, range(per_host), region_bytes).nbytes
    own = sum(nbytes for nbytes, _ in sizes.values()) // hosts
    destination = rank_bytes(layout) * per_host
    pack = figures.pack / figures.threads * cores
    ratio = figures.destination_bytes / figures.source_bytes
    place = figures.place / figures.threads * cores * ratio
    return Estimate(hosts, read, own, destination, read / disk, own / pack, destination / place)


def _sizes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, int]]]:
    """Bytes and rows of every tensor, as published."""
    for name, spec in target_tensors(config, (TARGET_PREFIX,)).items():
        shape = spec.shapes[0]
        size = _BYTES[spec.dtypes[0]]
        for axis in shape:
            size *= axis
        yield name, (size, shape[0])
