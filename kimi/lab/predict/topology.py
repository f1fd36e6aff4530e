"""Compile-only TPU v7 devices, and the environment that they need."""

import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from kimi.errors import InputError
from kimi.lab.predict.dump import dump_flags, require_libtpu
from kimi.lab.predict.failures import CompileError
from kimi.lab.predict.links import slice_of

DEFAULT_TOPOLOGY = "tpu7x:2x2x4"  # 16 chips, 32 cores, each core one device


def compiler_environment(
    dump: Path | None = None,
    *,
    source_lines: bool = False,
    base: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The environment of a process that compiles for TPU without one.

    libtpu reads it once, when it loads: give it to a subprocess, or set it before jax is used.

    Args:
      dump: where the schedule of every kernel is written; None writes none.
      source_lines: see `dump.dump_flags`.
      base: the environment to start from.
    """
    environment = dict(base)
    environment |= {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": "tpu7x-32",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
    }
    environment.pop("LIBTPU_INIT_ARGS", None)
    if dump is not None:
        flags = dump_flags(dump, source_lines)
        environment["LIBTPU_INIT_ARGS"] = " ".join(flags)
    return environment


def device_count(topology: str) -> int:
    """Devices of a topology name such as `tpu7x:2x2x4`.

    Raises:
      InputError: the name is not of that form.
    """
    return slice_of(topology).cores


def compile_mesh(
    topology: str = DEFAULT_TOPOLOGY,
    axes: Sequence[str] = ("tp",),
    shape: Sequence[int] | None = None,
) -> Mesh:
    """A mesh of compile-only devices.

    Args:
      topology: see `device_count`; must be one that the compiler knows.
      axes: axis names.
      shape: axis sizes; by default one axis over all devices.
    Raises:
      InputError: libtpu is missing, or the shape does not hold all devices.
      CompileError: the compiler does not know the topology.
    """
    require_libtpu()
    count = device_count(topology)
    sizes = (count,) if shape is None else tuple(shape)
    if prod(sizes) != count or len(sizes) != len(axes):
        raise InputError(
            f"mesh of {topology}: expected sizes of {len(axes)} axes with product {count}, "
            f"found {sizes}"
        )
    try:
        found = topologies.get_topology_desc(topology_name=topology, platform="tpu")
    except Exception as error:
        line = str(error).strip().splitlines()[0]
        raise CompileError(f"topology {topology}: {line}", detail=str(error)) from error
    return Mesh(np.array(found.devices).reshape(sizes), tuple(axes))


def one_device_mesh(topology: str = DEFAULT_TOPOLOGY) -> Mesh:
    """A mesh of a single core of a topology, for kernels without peers."""
    devices = compile_mesh(topology).devices.ravel()
    return Mesh(devices[:1], ("core",))
