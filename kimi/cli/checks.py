"""The checks of `doctor`. Each returns a finding and does not raise, so that all of them run."""

import importlib.metadata
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import kimi
from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.checkpoint.fingerprint import fingerprint
from kimi.config import ModelConfig
from kimi.errors import InputError, KimiError
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import RANKS, RANKS_PER_HOST, Mesh, default_mesh
from kimi.loading.arrays import rank_bytes
from kimi.loading.manifest import Manifest, file_names

DISTRIBUTION = "kimi-k3-tpu"
GIB = 1 << 30
FREE_BYTES = 2 * GIB  # answers, logs and compiled programs of a long run
HBM_RESERVE_BYTES = 6 * GIB  # per core, for the runtime, compiled programs and caches
SKEW_SECONDS = 2.0  # between hosts: logs can be merged, tokens and certificates are valid


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
      check: its name.
      good: whether it passed; None if it does not apply here.
      found: the state that was found.
      remedy: what to do if it failed.
    """

    check: str
    good: bool | None
    found: str
    remedy: str = ""


def versions() -> Finding:
    """Python and the installed packages, against the requirements of this library."""
    try:
        required = [Requirement(text) for text in importlib.metadata.requires(DISTRIBUTION) or ()]
    except importlib.metadata.PackageNotFoundError:
        remedy = "install it: bash scripts/quickstart.sh, or pip install -e '.[tpu]'"
        return Finding("versions", False, f"{DISTRIBUTION} is not installed", remedy)
    installed = {"python": ".".join(map(str, sys.version_info[:3]))}
    wrong = []
    for requirement in required:
        optional = requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        version = _version(requirement.name)
        if optional and (requirement.name != "libtpu" or version is None):
            continue
        installed[requirement.name] = version or "not installed"
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"expected {requirement}, found {installed[requirement.name]}")
    jaxlib = _version("jaxlib")
    if jaxlib != installed.get("jax"):
        wrong.append(f"expected jaxlib {installed.get('jax')}, as jax, found {jaxlib}")
    if wrong:
        remedy = "install the versions of requirements.lock: remove .venv, bash scripts/setup.sh"
        return Finding("versions", False, "; ".join(wrong), remedy)
    names = ("python", "jax", "libtpu")
    text = ", ".join(f"{name} {installed.get(name, 'not installed')}" for name in names)
    return Finding("versions", True, f"{DISTRIBUTION} {kimi.__version__}, {text}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices(
    list_devices: Callable[[], Sequence[Any]], ranks: int | None
) -> tuple[Finding, Sequence[Any]]:
    """The number and kind of the devices, as `startup.find_devices` lists them, and the devices.

    Args:
      ranks: required; None accepts any number that a mesh can have.
    """
    try:
        listed = list_devices()
    except InputError as e:
        remedy = (
            "end the process that holds the TPU (sudo lsof /dev/vfio/* /dev/accel*), remove "
            "/tmp/libtpu_lockfile if none does, or restart the host; without a TPU, unset "
            "JAX_PLATFORMS"
        )
        return Finding("devices", False, str(e), remedy), ()
    return _count(listed, ranks), listed


def _count(listed: Sequence[Any], ranks: int | None) -> Finding:
    count, kind, on_tpu = len(listed), listed[0].device_kind, listed[0].platform == "tpu"
    hosts = len({device.process_index for device in listed})
    text = f"{count} x {kind} ({listed[0].platform}) on {hosts} host{'s' if hosts > 1 else ''}"
    if ranks is None:
        good, expected = not on_tpu or count in RANKS, f"one of {RANKS}"
    else:
        good, expected = on_tpu and count >= ranks, f"{ranks} TPU cores"
    if good:
        return Finding("devices", True, text)
    remedy = "run on a TPU host, with the extra `tpu` installed and without JAX_PLATFORMS=cpu"
    if on_tpu:
        remedy = "start one process on every host of the slice with scripts/launch"
    return Finding("devices", False, f"{text}: expected {expected}", remedy)


def topology(listed: Sequence[Any]) -> Finding:
    """Whether the coordinates of the cores are the mesh's, and each host has the cores of one z."""
    if listed[0].platform != "tpu":
        return Finding("topology", None, f"no slice: {listed[0].platform} devices")
    mesh, ranks, hosts = Mesh(RANKS[-1]), set[int](), dict[int, set[int]]()
    problem = ""
    for device in listed:
        coordinates = (*device.coords, device.core_on_chip)
        rank = mesh.rank_of(*coordinates)
        if rank >= mesh.ranks or mesh.coordinates(rank) != coordinates:
            problem = problem or f"core at x, y, z, core = {coordinates}"
        ranks.add(rank)
        hosts.setdefault(mesh.host(rank), set()).add(device.process_index)
    if ranks != set(range(len(listed))):
        problem = problem or f"cores {sorted(ranks)}"
    processes = [sorted(indices) for indices in hosts.values()]
    if any(len(p) > 1 for p in processes) or len(set(map(tuple, processes))) < len(hosts):
        problem = problem or f"processes of the hosts {processes}"
    if problem:
        return Finding(
            "topology", False, f"expected the 2x2x4 slice or its beginning, found {problem}",
            "ask for the topology 2x2x4; if the platform does not configure libtpu, set "
            "TPU_PROCESS_BOUNDS=1,1,4 and TPU_CHIPS_PER_PROCESS_BOUNDS=2,2,1 (scripts/launch)",
        )  # fmt: skip
    text = f"{len(ranks)} cores, {len(hosts)} x {RANKS_PER_HOST} a host"
    return Finding("topology", True, text)


def hbm(local: Sequence[Any], layout: Layout | None) -> Finding:
    """Whether the weights of a rank fit each of this host's devices."""
    if local[0].platform != "tpu":
        return Finding("hbm", None, f"no HBM: {local[0].platform} devices")
    free = min(s["bytes_limit"] - s["bytes_in_use"] for s in (d.memory_stats() for d in local))
    text = f"{free / GIB:.1f} GiB free on the fullest core"
    if layout is None:
        return Finding("hbm", None, f"{text}; no model or store to compare with")
    weights = rank_bytes(layout)
    text += f", weights {weights / GIB:.1f} GiB ({layout.mesh.name}, {layout.expert_format})"
    if free >= weights + HBM_RESERVE_BYTES:
        return Finding("hbm", True, text)
    return Finding(
        "hbm", False, f"{text} and {HBM_RESERVE_BYTES / GIB:.0f} GiB beside them",
        "end other programs on these cores, use more ranks, or --experts mxfp4",
    )  # fmt: skip


def division(config: ModelConfig, ranks: int | None, experts: str) -> tuple[Finding, Layout | None]:
    """Whether a model can be sharded over `ranks`, and its layout. None ranks: no kernel."""
    if ranks is None:
        return Finding("mesh", None, "no TPU: the reference runs on one device"), None
    try:
        layout = Layout(config, default_mesh(config, ranks), ExpertFormat(experts))
    except KimiError as e:
        return Finding("mesh", False, str(e), "choose another number with --ranks"), None
    return Finding("mesh", True, f"{ranks} ranks: {layout.mesh.name}"), layout


def local_folder(model: str) -> Path | None:
    """The folder of a model: a path, or a repository in the hub's cache; None if not here."""
    if Path(model).exists():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache  # slow to import

    name, _, revision = model.partition("@")
    try:
        file = try_to_load_from_cache(name, "config.json", revision=revision or None)
    except ValueError:  # not a repository's name
        return None
    return Path(file).parent if isinstance(file, str) else None


def model(name: str) -> tuple[Finding, Checkpoint | None]:
    """Whether a checkpoint is here and complete; reads headers and sizes, not values."""
    folder = local_folder(name)
    if folder is None:
        return _missing("model", name), None
    try:
        checkpoint = Checkpoint(folder)
        problems = checkpoint.problems()
    except (KimiError, OSError) as e:
        return _damaged("model", str(e)), None
    if problems:
        return _damaged("model", f"{folder}: {len(problems)} problems: {problems[0]}"), None
    files = {checkpoint.shards.files[tensor] for tensor in checkpoint}
    text = f"{folder}: {len(checkpoint)} tensors in {len(files)} files"
    return Finding("model", True, text), checkpoint


def drafter(target: Checkpoint, name: str | None, folder_name: str) -> Finding:
    """Whether the drafter is here, complete, and for this target."""
    folder = target.path / folder_name if name is None else local_folder(name)
    if name is None and folder is not None and not (folder / "config.json").exists():
        return Finding("drafter", None, f"none in {folder}")
    if folder is None:
        return _missing("drafter", str(name))
    try:
        checkpoint = DraftCheckpoint(folder)
        checkpoint.check()
        checkpoint.config.check_target(target.config)
    except (KimiError, OSError) as e:
        return _damaged("drafter", str(e))
    return Finding("drafter", True, f"{folder}: {checkpoint.config.block_size} rows a block")


def _missing(check: str, name: str) -> Finding:
    remedy = f"give the folder with its config.json, or: hf download {name}, on every host"
    return Finding(check, False, f"{name}: neither a folder nor in the hub's cache", remedy)


def _damaged(check: str, found: str) -> Finding:
    return Finding(check, False, found, "download it again: hf download resumes and repairs")


def store(
    path: Path, checkpoint: Checkpoint | None, ranks: int | None, experts: str, hosts: range
) -> tuple[Finding, Layout | None]:
    """Whether a pre-sharded store is finished and for this mesh, and its files have their sizes.

    Args:
      checkpoint: that it must have been made from; None if unknown.
      ranks, experts: required; any number of ranks if None.
      hosts: whose files must be here.
    """
    try:
        manifest = Manifest.read(path)
        layout = manifest.identity.layout
        if ranks is not None and layout.mesh.ranks != ranks:
            raise KimiError(f"{path}: mesh: expected {ranks} ranks, found {layout.mesh.ranks}")
        if layout.expert_format != experts:
            raise KimiError(f"{path}: experts: expected {experts}, found {layout.expert_format}")
        if checkpoint is not None and manifest.identity.fingerprint != fingerprint(checkpoint):
            raise KimiError(f"{path}: checkpoint: expected {checkpoint.path}, found another")
        names = [n for n, (r, _) in file_names(layout).items() if layout.mesh.host(r) in hosts]
        for name in names:
            size = (path / name).stat().st_size if (path / name).exists() else None
            if size != manifest.files[name].nbytes:
                expected = f"expected {manifest.files[name].nbytes} bytes"
                raise KimiError(f"{path / name}: {expected}, found {size or 'no such file'}")
    except (KimiError, OSError) as e:
        command = f"python -m kimi preshard --model MODEL --ranks {ranks or RANKS[-1]} --out {path}"
        return Finding("store", False, str(e), f"write or finish it: {command} (it resumes)"), None
    total = sum(manifest.files[name].nbytes for name in names)
    text = f"{path}: {layout.mesh.name}, {experts}, {total / GIB:.1f} GiB in {len(names)} files"
    return Finding("store", True, text), layout


def disk(folder: Path) -> Finding:
    """Whether a folder can be written and has space for answers, logs and compiled programs."""
    existing = folder.resolve()
    while not existing.exists():
        existing = existing.parent
    if not os.access(existing, os.W_OK):
        remedy = "choose another folder: --disk"
        return Finding("disk", False, f"{existing}: cannot be written", remedy)
    free = shutil.disk_usage(existing).free
    text, good = f"{folder}: {free / GIB:.1f} GiB free", free >= FREE_BYTES
    remedy = f"free some of it: {FREE_BYTES / GIB:.0f} GiB are needed, or --disk FOLDER"
    return Finding("disk", good, text, "" if good else remedy)


def clock(now: float, others: Sequence[float] = ()) -> Finding:
    """Whether the clock is behind this library's files, or differs from other hosts' clocks.

    Args:
      now: seconds since 1970.
      others: of all hosts at the same moment; empty if there is one host.
    """
    remedy = "switch on time synchronisation: sudo timedatectl set-ntp true"
    written = Path(kimi.__file__).stat().st_mtime
    if now < written - SKEW_SECONDS:
        days = (written - now) / 86400
        text = f"{days:.1f} days before the library's own files were written"
        return Finding("clock", False, text, remedy)
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if others:
        skew = max(others) - min(others)
        text += f", {skew:.2f} s apart over {len(others)} hosts"
        if skew > SKEW_SECONDS:
            middle = statistics.median(others)
            host = max(range(len(others)), key=lambda i: abs(others[i] - middle))
            return Finding("clock", False, f"{text}; host {host} differs most", remedy)
    return Finding("clock", True, text)
