"""What a benchmark ran on: hardware, versions, commit."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

import kimi

_ROOT = Path(kimi.__file__).parents[1]
_PACKAGES = ("jax", "jaxlib", "libtpu")


def describe() -> dict[str, Any]:
    """Devices, processors, versions and commit; what there is not is None."""
    devices = jax.devices()
    return {
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "devices": len(devices),
        "hosts": jax.process_count(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "versions": {
            "kimi": kimi.__version__,
            **{name: _version(name) for name in _PACKAGES},
            "python": platform.python_version(),
        },
        "commit": commit(_ROOT),
    }


def commit(root: Path) -> str | None:
    """The commit of the repository whose root this is, and whether tracked files differ from it."""
    if not (root / ".git").exists():
        return None
    head = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{head} with changes" if head and changed else head


def _git(root: Path, *argv: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *argv], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
