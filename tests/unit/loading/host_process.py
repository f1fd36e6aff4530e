"""One of several hosts, as a process with CPU devices of its own."""

import os
import sys
from pathlib import Path

import jax
import numpy as np

from kimi.checkpoint import Checkpoint
from kimi.errors import KimiError
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.loading.arrays import ARRAYS
from kimi.loading.load import load_checkpoint, load_store
from kimi.loading.store import Store
from tests.packing.target import pack


def main(index: str, count: str, port: str, model: str, store: str, breaks: str) -> None:
    """Loads the ranks of host `index`; host `breaks` cannot read its files."""
    jax.config.update("jax_num_cpu_devices", 4 // int(count))
    jax.distributed.initialize(f"127.0.0.1:{port}", int(count), int(index))
    checkpoint = Checkpoint(Path(model))
    layout = Layout(checkpoint.config, Mesh(4, 2))
    if index == breaks:
        break_reads()
    seen = []
    report = lambda done, total: seen.append((done, total))  # noqa: E731
    try:
        loads = [load_checkpoint(checkpoint, layout, report=report)]
        loads.append(load_store(Store(Path(store))))
    except KimiError as e:
        print(f"error: {e}", flush=True)
        return
    tensors = dict(checkpoint)
    for weights in loads:
        check(layout, tensors, weights)
    print(f"loaded {sorted({total for _, total in seen})}", flush=True)


def break_reads() -> None:
    preadv, calls = os.preadv, []

    def fail(descriptor, buffers, offset, flags=0):
        if not flags:
            calls.append(offset)
        if len(calls) > 1:
            raise OSError(5, "Input/output error")
        return preadv(descriptor, buffers, offset, flags)

    os.preadv = fail


def check(layout, tensors, weights) -> None:
    """The shards of this process, against packing in memory."""
    ranks = set()
    for name in ARRAYS:
        array = getattr(weights, name)
        assert array.shape == (4, *layout.shapes[name])
        for shard in array.addressable_shards:
            rank = shard.index[0].start
            ranks.add(rank)
            expected = getattr(pack(layout, tensors, rank), name)
            np.testing.assert_array_equal(np.asarray(shard.data)[0], expected)
    assert len(ranks) == jax.local_device_count()


if __name__ == "__main__":
    main(*sys.argv[1:])
