"""The environment of jax, set before it is imported, and its devices."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

from kimi.errors import InputError

if TYPE_CHECKING:
    import jax

TPU_DEVICE_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*")
GPU_DEVICE_FILES = ("/dev/nvidia[0-9]*",)
CACHE_DIR = "KIMI_CACHE_DIR"


def prepare_environment() -> None:
    """Keeps a machine without a TPU from waiting for one.

    With libtpu installed, jax queries the cloud's metadata server for a TPU at start-up, which off
    the cloud takes minutes to fail; without `JAX_PLATFORMS` it tries to open one. Variables that
    the user has set are not changed.
    """
    if _any_exist(TPU_DEVICE_FILES):
        return
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    if not _any_exist(GPU_DEVICE_FILES):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def cache_folder() -> Path | None:
    """The folder of compiled programs: `KIMI_CACHE_DIR`, else in the user's cache folder.

    None if that variable is "off" or empty, or if the user has no home.
    """
    named = os.environ.get(CACHE_DIR)
    if named is not None:
        return None if named in ("", "off") else Path(named).absolute()
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "kimi-k3"
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else home / ".cache") / "kimi-k3"


def find_devices() -> "list[jax.Device]":
    """`jax.devices()`; on several hosts, call it after they have joined.

    Raises InputError if there are none, or none of the platforms in `JAX_PLATFORMS`.
    """
    import jax

    try:
        with nullcontext() if _any_exist(TPU_DEVICE_FILES) else _quiet():
            return jax.devices()
    except (RuntimeError, AssertionError) as e:  # for some platforms jax merely asserts
        reason = " ".join(str(e).split()) or "jax finds none"
        requested = os.environ.get("JAX_PLATFORMS") or jax.config.jax_platforms
        if not requested:
            raise InputError(f"devices: expected some that jax can use: {reason}") from None
        raise InputError(
            f"JAX_PLATFORMS: expected platforms with devices here, found {requested!r}: {reason}"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses libtpu's messages on standard error about a missing TPU."""
    stderr = os.dup(2)
    with open(os.devnull, "w") as devnull:
        os.dup2(devnull.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _any_exist(patterns: tuple[str, ...]) -> bool:
    return any(glob(pattern) for pattern in patterns)
