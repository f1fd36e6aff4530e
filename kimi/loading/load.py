"""Loading onto devices, from a checkpoint or from a store; on one host or on many."""

from collections.abc import Callable, Sequence

import jax

from kimi.checkpoint import Checkpoint
from kimi.kernels.layout import Layout, Weights
from kimi.loading.hosts import Hosts
from kimi.loading.placement import assemble, place, rank_devices
from kimi.loading.sinks import Sink
from kimi.loading.store import Store
from kimi.loading.stream import Limits, Progress, checkpoint_totals, stream

Report = Callable[[int, int], None]  # bytes done, bytes to do, of all hosts
_Read = Callable[[tuple[int, ...], Sink, Progress], None]


def load_checkpoint(
    checkpoint: Checkpoint,
    layout: Layout,
    devices: Sequence[jax.Device] | None = None,
    limits: Limits | None = None,
    report: Report | None = None,
) -> Weights:
    """Loads from the checkpoint's own files. In every process of a program alike.

    Args:
      layout: model, mesh and expert format wanted.
      devices: of all ranks, in their order; default `rank_devices`.
      limits: of memory and threads.
      report: called in this thread with the progress.
    Raises:
      KimiError: the first thing that went wrong on any host, naming file or tensor.
    """
    limits = limits or Limits()

    def total(ranks: tuple[int, ...]) -> int:
        return checkpoint_totals(layout, checkpoint, ranks).nbytes

    def read(ranks: tuple[int, ...], sink: Sink, progress: Progress) -> None:
        stream(layout, checkpoint, ranks, sink, limits, progress)

    return _load(layout, devices, total, read, report)


def load_store(
    store: Store,
    devices: Sequence[jax.Device] | None = None,
    limits: Limits | None = None,
    report: Report | None = None,
) -> Weights:
    """Loads from a store. In every process of a program alike.

    Call `Store.require` before, if the mesh, format or checkpoint has to be a certain one.

    Args and errors: as `load_checkpoint`.
    """
    limits = limits or Limits()

    def read(ranks: tuple[int, ...], sink: Sink, progress: Progress) -> None:
        store.read(ranks, sink, limits, progress)

    return _load(store.layout, devices, store.nbytes, read, report)


def _load(
    layout: Layout,
    devices: Sequence[jax.Device] | None,
    total: Callable[[tuple[int, ...]], int],
    read: _Read,
    report: Report | None,
) -> Weights:
    hosts = Hosts.all()
    try:
        devices = rank_devices(layout.mesh) if devices is None else devices
        placement = place(layout, devices)
        own = tuple(r for r, d in enumerate(devices) if d.process_index == jax.process_index())
        own_bytes = total(own)

        def progress(done: int) -> None:
            found = hosts.progress(done, own_bytes)
            if found is not None and report is not None:
                report(*found)

        read(own, placement, progress)
        placed = placement.finish()
        found = hosts.finish(own_bytes)
        if report is not None:
            report(*found)
    except BaseException as e:
        hosts.fail(e)
        raise
    return assemble(layout, devices, placed)
