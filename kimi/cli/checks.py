"""What `doctor` checks. Every check returns a finding and never raises: all of them are wanted."""

import importlib.metadata
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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
# Of the runtime, the compiled programs and the caches, beside the weights of a core.
HBM_RESERVE_BYTES = 6 * GIB
SKEW_SECONDS = 2.0  # between hosts: logs can be put in order, tokens and certificates are valid


class Device(Protocol):
    """What is used of a `jax.Device`."""

    platform: str
    process_index: int
    device_kind: str


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
      check: its name.
      good: whether it passed; None if it does not apply here.
      found: what there is.
      remedy: what to do, if it failed.
    """

    check: str
    good: bool | None
    found: str
    remedy: str = ""


def versions() -> Finding:
    """Python and the packages that this library was installed with, against what it asks for."""
    try:
        wanted = [Requirement(text) for text in importlib.metadata.requires(DISTRIBUTION) or ()]
    except importlib.metadata.PackageNotFoundError:
        remedy = "install it: bash scripts/quickstart.sh, or pip install -e '.[tpu]'"
        return Finding("versions", False, f"{DISTRIBUTION} is not installed", remedy)
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    wrong = []
    for requirement in wanted:
        optional = requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        version = _version(requirement.name)
        if optional and (requirement.name != "libtpu" or version is None):
            continue
        found[requirement.name] = version or "not installed"
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement} is wanted, found {found[requirement.name]}")
    jaxlib = _version("jaxlib")
    if jaxlib != found.get("jax"):
        wrong.append(f"jaxlib {found.get('jax')} is wanted as of jax, found {jaxlib}")
    shown = {name: found.get(name, "not installed") for name in ("python", "jax", "libtpu")}
    text = ", ".join(f"{name} {version}" for name, version in shown.items())
    if wrong:
        remedy = "install the versions of requirements.lock: remove .venv, bash scripts/setup.sh"
        return Finding("versions", False, "; ".join(wrong), remedy)
    return Finding("versions", True, f"{DISTRIBUTION} {kimi.__version__}, {text}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def devices[D: Device](
    list_devices: Callable[[], Sequence[D]], ranks: int | None
) -> tuple[Finding, Sequence[D]]:
    """How many devices of which kind there are, and themselves.

    Args:
      list_devices: `startup.find_devices`.
      ranks: wanted; None takes what there is.
    """
    try:
        found = list_devices()
    except InputError as e:
        remedy = (
            "end the process that holds the TPU (sudo lsof /dev/vfio/* /dev/accel*), remove "
            "/tmp/libtpu_lockfile if none does, or restart the host; without a TPU, unset "
            "JAX_PLATFORMS"
        )
        return Finding("devices", False, str(e), remedy), ()
    return _count(found, ranks), found


def _count(found: Sequence[Device], ranks: int | None) -> Finding:
    kind, platform = found[0].device_kind, found[0].platform
    hosts = len({d.process_index for d in found})
    text = f"{len(found)} x {kind} ({platform}) on {hosts} host{'s' if hosts > 1 else ''}"
    if ranks is None:
        if platform != "tpu" or len(found) in RANKS:
            return Finding("devices", True, text)
        text, ranks = f"{text}: expected one of {RANKS}", RANKS[-1]
    elif platform == "tpu" and len(found) >= ranks:
        return Finding("devices", True, text)
    else:
        text = f"{text}: expected {ranks} TPU cores"
    remedy = (
        "start one process on every host of the slice with scripts/launch"
        if platform == "tpu"
        else "run on a TPU host, with the extra `tpu` installed and without JAX_PLATFORMS=cpu"
    )
    return Finding("devices", False, text, remedy)


def topology(found: Sequence[Any]) -> Finding:
    """Whether the cores lie as the mesh numbers them, and every host has those of one z."""
    if found[0].platform != "tpu":
        return Finding("topology", None, f"no slice: {found[0].platform} devices")
    mesh, hosts, problems = Mesh(RANKS[-1]), dict[int, set[int]](), []
    ranks = set()
    for device in found:
        place = (*device.coords, device.core_on_chip)
        rank = mesh.rank_of(*place)
        if rank >= mesh.ranks or mesh.coordinates(rank) != place:
            problems.append(f"core at x, y, z, core = {place}")
            continue
        ranks.add(rank)
        hosts.setdefault(mesh.host(rank), set()).add(device.process_index)
    text = f"{len(ranks)} cores, {len(hosts)} x {RANKS_PER_HOST} a host"
    if not problems and ranks != set(range(len(found))):
        problems.append(f"cores {sorted(ranks)}")
    processes = [min(p) for p in hosts.values() if len(p) == 1]
    if not problems and len(set(processes)) != len(hosts):
        problems.append(f"processes of the hosts {[sorted(p) for p in hosts.values()]}")
    if problems:
        return Finding(
            "topology", False, f"expected the 2x2x4 slice or its beginning, found {problems[0]}",
            "ask for the topology 2x2x4; where the platform does not tell libtpu, "
            "TPU_PROCESS_BOUNDS=1,1,4 and TPU_CHIPS_PER_PROCESS_BOUNDS=2,2,1 (scripts/launch)",
        )  # fmt: skip
    return Finding("topology", True, text)


def hbm(found: Sequence[Any], layout: Layout | None) -> Finding:
    """Whether the weights of a rank fit each of this host's devices."""
    if found[0].platform != "tpu":
        return Finding("hbm", None, f"no HBM: {found[0].platform} devices")
    free = min(s["bytes_limit"] - s["bytes_in_use"] for s in (d.memory_stats() for d in found))
    text = f"{free / GIB:.1f} GiB free on the fullest core"
    if layout is None:
        return Finding("hbm", None, f"{text}; no model or store to compare with")
    need = rank_bytes(layout)
    text += f", weights {need / GIB:.1f} GiB ({layout.mesh.name}, {layout.expert_format})"
    if free >= need + HBM_RESERVE_BYTES:
        return Finding("hbm", True, text)
    return Finding(
        "hbm", False, f"{text} and {HBM_RESERVE_BYTES / GIB:.0f} GiB beside them",
        "end other programs on these cores, use more ranks, or --experts mxfp4",
    )  # fmt: skip


def division(config: ModelConfig, ranks: int | None, experts: str) -> tuple[Finding, Layout | None]:
    """Whether a model can be divided over so many ranks, and its layout. None ranks: no kernel."""
    if ranks is None:
        return Finding("mesh", None, "no TPU: the reference runs on one device"), None
    try:
        layout = Layout(config, default_mesh(config, ranks), ExpertFormat(experts))
    except KimiError as e:
        return Finding("mesh", False, str(e), "choose another number with --ranks"), None
    return Finding("mesh", True, f"{ranks} ranks: {layout.mesh.name}"), layout


def local_folder(model: str) -> Path | None:
    """The folder of a model: a path, or a repository in the hub's cache. Downloads nothing."""
    if Path(model).exists():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache  # slow to import

    name, _, revision = model.partition("@")
    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision or None)
    except ValueError:  # not even the form of a repository's name
        return None
    return Path(found).parent if isinstance(found, str) else None


def model(name: str) -> tuple[Finding, Checkpoint | None]:
    """Whether a checkpoint is here and complete; headers and sizes are read, not values."""
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
    """Whether the drafter is here, complete, and made for the target."""
    folder = target.path / folder_name if name is None else local_folder(name)
    if name is None and folder is not None and not (folder / "config.json").exists():
        return Finding("drafter", None, f"none in {folder}")
    if folder is None:
        return _missing("drafter", str(name))
    try:
        found = DraftCheckpoint(folder)
        found.check()
        found.config.check_target(target.config)
    except (KimiError, OSError) as e:
        return _damaged("drafter", str(e))
    return Finding("drafter", True, f"{folder}: {found.config.block_size} rows a block")


def _missing(check: str, name: str) -> Finding:
    remedy = f"give the folder that holds its config.json, or: hf download {name}, on every host"
    return Finding(check, False, f"{name}: neither a folder nor in the hub's cache", remedy)


def _damaged(check: str, found: str) -> Finding:
    return Finding(check, False, found, "download it again: hf download resumes and repairs")


def store(
    path: Path, checkpoint: Checkpoint | None, ranks: int | None, experts: str, hosts: range
) -> tuple[Finding, Layout | None]:
    """Whether a pre-sharded store is finished, for this mesh, and whole as to its files' sizes.

    Args:
      checkpoint: that it must have been made from; None if unknown.
      ranks, experts: wanted; any number if None.
      hosts: whose files must be here.
    """
    again = f"python -m kimi preshard --model MODEL --ranks {ranks or RANKS[-1]} --out {path}"
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
        remedy = f"finish or write it: {again} (it goes on where it stopped)"
        return Finding("store", False, str(e), remedy), None
    total = sum(manifest.files[name].nbytes for name in names)
    text = f"{path}: {layout.mesh.name}, {experts}, {total / GIB:.1f} GiB in {len(names)} files"
    return Finding("store", True, text), layout


def disk(folder: Path) -> Finding:
    """Whether a folder can be written and has room for answers, logs and compiled programs."""
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{folder}: {free / GIB:.1f} GiB free"
    if not os.access(place, os.W_OK):
        return Finding(
            "disk", False, f"{place}: cannot be written", "choose another folder: --disk"
        )
    if free < FREE_BYTES:
        remedy = f"free some of it: {FREE_BYTES / GIB:.0f} GiB are wanted, or --disk FOLDER"
        return Finding("disk", False, text, remedy)
    return Finding("disk", True, text)


def clock(now: float, others: Sequence[float] = ()) -> Finding:
    """Whether the clock is behind this program's own files, or apart from other hosts' clocks.

    Args:
      now: seconds since 1970.
      others: of all hosts at the same moment, or none.
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
            return Finding("clock", False, f"{text}, most of all host {host}", remedy)
    return Finding("clock", True, text)
