"""What must be settled before jax is imported."""

import os
from glob import glob

TPU_DEVICE_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*")
GPU_DEVICE_FILES = ("/dev/nvidia[0-9]*",)


def prepare_environment() -> None:
    """Keeps a machine without a TPU from waiting for one.

    With libtpu installed, jax asks the cloud's metadata server for a TPU at start-up, which off the
    cloud takes minutes to fail; and without `JAX_PLATFORMS` it tries to open one. Variables that
    the user has set are left alone.
    """
    if _any_exist(TPU_DEVICE_FILES):
        return
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    if not _any_exist(GPU_DEVICE_FILES):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _any_exist(patterns: tuple[str, ...]) -> bool:
    return any(glob(pattern) for pattern in patterns)
