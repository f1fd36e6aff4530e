"""Rank arrays on devices, filled in place.

A CPU device takes over memory as it is, so that parts are packed where they stay. Any other device
holds the array from the start, and every part goes into it by an update that donates it.
"""

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding, PartitionSpec

from kimi.codecs.memory import zeroed
from kimi.kernels.collectives import AXIS
from kimi.kernels.layout import Layout, Weights
from kimi.kernels.mesh import Mesh
from kimi.loading.arrays import ARRAYS, Words, dtype, flat_shape
from kimi.loading.errors import LoadError

Placed = dict[tuple[int, str], jax.Array]  # by rank and name, each [1, ...]


class HostMemory:
    """Writes to memory of this machine, for CPU devices.

    Args:
      layout: of the model.
      devices: rank -> device, of this process.
    """

    def __init__(self, layout: Layout, devices: Mapping[int, jax.Device]):
        self._layout, self._devices = layout, devices
        self._arrays = {
            (rank, name): zeroed(flat_shape(layout, name), dtype(name))
            for rank in devices
            for name in ARRAYS
        }

    @contextmanager
    def chunk(self, rank: int, array: str, row: int, rows: int) -> Iterator[Words]:
        """A view of the array itself."""
        yield self._arrays[rank, array][row : row + rows]

    def finish(self) -> Placed:
        """The same memory, as arrays of JAX."""
        arrays, self._arrays = self._arrays, {}  # nobody writes there any more
        return {
            (rank, name): jax.device_put(
                array.reshape(1, *self._layout.shapes[name]), self._devices[rank]
            )
            for (rank, name), array in arrays.items()
        }


class DeviceMemory:
    """Writes to memory of devices of any kind.

    Args: as `HostMemory`.
    """

    def __init__(self, layout: Layout, devices: Mapping[int, jax.Device]):
        self._layout, self._devices = layout, devices
        self._arrays = {
            (rank, name): jnp.zeros(flat_shape(layout, name), dtype(name), device=device)
            for rank, device in devices.items()
            for name in ARRAYS
        }
        self._locks = {key: threading.Lock() for key in self._arrays}

    @contextmanager
    def chunk(self, rank: int, array: str, row: int, rows: int) -> Iterator[Words]:
        """Fresh memory, which is transferred when the block ends."""
        key = rank, array
        part = np.empty((rows, self._arrays[key].shape[1]), dtype(array))
        yield part
        moved = jax.device_put(part, self._devices[rank])
        with self._locks[key]:
            self._arrays[key] = _update(self._arrays[key], moved, row)
            # The memory is given back only when it has been read.
            jax.block_until_ready(self._arrays[key])

    def finish(self) -> Placed:
        """The arrays."""
        return {
            (rank, name): _reshape(self._arrays.pop((rank, name)), (1, *self._layout.shapes[name]))
            for rank, name in list(self._arrays)
        }


@functools.partial(jax.jit, donate_argnums=0)
def _update(array: jax.Array, part: jax.Array, row: int) -> jax.Array:
    return lax.dynamic_update_slice(array, part, (row, 0))


@functools.partial(jax.jit, donate_argnums=0, static_argnums=1)
def _reshape(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return array.reshape(shape)


def place(layout: Layout, devices: Sequence[jax.Device]) -> HostMemory | DeviceMemory:
    """Where the ranks of this process go.

    Args:
      devices: of all ranks, in their order; those of other processes are left out.
    Raises:
      LoadError: not one device per rank.
    """
    if len(devices) != layout.mesh.ranks:
        raise LoadError(
            f"devices: expected one for each of {layout.mesh.ranks} ranks, found {len(devices)}"
        )
    local = {r: d for r, d in enumerate(devices) if d.process_index == jax.process_index()}
    kind = HostMemory if all(d.platform == "cpu" for d in local.values()) else DeviceMemory
    return kind(layout, local)


def assemble(layout: Layout, devices: Sequence[jax.Device], placed: Placed) -> Weights:
    """One array [ranks, ...] for each name, rank r on the r-th device of the axis "ranks".

    Every process calls this with its own ranks.
    """
    sharding = NamedSharding(DeviceMesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))
    ranks = sorted({rank for rank, _ in placed})
    arrays = {
        name: jax.make_array_from_single_device_arrays(
            (layout.mesh.ranks, *layout.shapes[name]),
            sharding,
            [placed[rank, name] for rank in ranks],
        )
        for name in ARRAYS
    }
    return Weights(**arrays)


def rank_devices(mesh: Mesh) -> list[jax.Device]:
    """The devices of all ranks: by coordinates for TPU cores, otherwise in JAX's order.

    Raises:
      LoadError: fewer devices than ranks.
    """
    devices = jax.devices()
    if len(devices) < mesh.ranks:
        raise LoadError(f"devices: expected {mesh.ranks}, one a rank, found {len(devices)}")
    if devices[0].platform == "tpu":
        devices.sort(key=lambda d: mesh.rank_of(*_coordinates(d)))
    return devices[: mesh.ranks]


def _coordinates(device: jax.Device) -> tuple[int, int, int, int]:
    x, y, z = device.coords
    return x, y, z, device.core_on_chip
