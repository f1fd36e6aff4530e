"""Loading onto devices, from a checkpoint or from a store; on one host or on many."""

from collections.abc import Callable, Sequence

import jax

from kimi.checkpoint import Checkpoint
from kimi.kernels.layout import Layout, Weights
from kimi.loading.arrays import Writer
from kimi.loading.hosts import Hosts
from kimi.loading.placement import assemble, place, rank_devices
from kimi.loading.store import Store
from kimi.loading.stream import Limits, checkpoint_totals, stream
from kimi.loading.workers import Progress

Report = Callable[[int, int], None]  # bytes done, bytes to do, of all hosts
_Ranks = tuple[int, ...]


def load_checkpoint(
    checkpoint: Checkpoint,
    layout: Layout,
    devices: Sequence[jax.Device] | None = None,
    report: Report | None = None,
) -> Weights:
    """Loads from the checkpoint's own files. In every process of a program alike.

    Args:
      layout: model, mesh and expert format wanted.
      devices: of all ranks, in their order; default `rank_devices`.
      report: called in this thread with the progress.
    Raises:
      KimiError: the first thing that went wrong on any host, naming file or tensor.
    """

    def nbytes(ranks: _Ranks) -> int:
        return checkpoint_totals(layout, checkpoint, ranks).nbytes

    def read(ranks: _Ranks, writer: Writer, limits: Limits, progress: Progress) -> None:
        stream(layout, checkpoint, ranks, writer, limits, progress)

    return _load(layout, devices, nbytes, read, report)


def load_store(
    store: Store, devices: Sequence[jax.Device] | None = None, report: Report | None = None
) -> Weights:
    """Loads from a store. In every process of a program alike.

    Call `Store.require` before, if the mesh, format or checkpoint has to be a certain one.

    Args and errors: as `load_checkpoint`.
    """
    return _load(store.layout, devices, store.nbytes, store.read, report)


def _load(
    layout: Layout,
    devices: Sequence[jax.Device] | None,
    nbytes: Callable[[_Ranks], int],
    read: Callable[[_Ranks, Writer, Limits, Progress], None],
    report: Report | None,
) -> Weights:
    hosts = Hosts.all()

    def show(progress: tuple[int, int] | None) -> None:
        if progress is not None and report is not None:
            report(*progress)

    try:
        devices = rank_devices(layout.mesh) if devices is None else devices
        placement = place(layout, devices)
        local = tuple(r for r, d in enumerate(devices) if d.process_index == jax.process_index())
        total = nbytes(local)
        read(local, placement, Limits(), lambda done: show(hosts.progress(done, total)))
        arrays = placement.finish()
        show(hosts.finish(total))
    except BaseException as e:
        hosts.fail(e)
        raise
    return assemble(layout, devices, arrays)
