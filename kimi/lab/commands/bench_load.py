"""`bench-load`: how fast this machine loads, on a generated checkpoint of full width."""

import argparse
import dataclasses
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from kimi import process
from kimi.checkpoint import Checkpoint
from kimi.cli.console import print_json, working
from kimi.cli.options import integer, number
from kimi.cli.preshard import add_limits, limits_of, transferring
from kimi.config import ModelConfig
from kimi.config.model import PUBLISHED
from kimi.errors import InputError
from kimi.fields import load_json
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import RANKS, default_mesh
from kimi.lab.bench.load import Estimate, Figures, estimate, measure
from kimi.lab.bench.synthetic import generate, reduced, total_bytes
from kimi.startup import find_devices

_GB = 1e9
_VOCAB = 4096
_HOSTS = 4


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--dir", required=True, help="folder for the generated checkpoint")
    p.add_argument("--gb", type=number, default=4.0, help="least size of it")
    p.add_argument("--config", default=str(PUBLISHED), help="config.json of the full model")
    p.add_argument(
        "--ranks", "--mesh", type=int, choices=RANKS, default=32, help="ranks, all on this host"
    )
    p.add_argument(
        "--experts",
        choices=[str(f) for f in ExpertFormat],
        default="fp8",
        help="their format",
    )
    p.add_argument(
        "--keep", action="store_true", help="keep the checkpoint in DIR and use it again"
    )
    p.add_argument("--host-cores", type=integer(1), help="of each of 4 hosts (default: as here)")
    p.add_argument("--host-disk", type=number, metavar="GB/S", help="of a host (default: as here)")
    add_limits(p)
    p.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    find_devices()
    limits = limits_of(args)
    full = load_json(args.config)
    data = _sized(full, args.ranks, args.gb)
    folder, made = _checkpoint(args, data)
    try:
        checkpoint = Checkpoint(folder)
        checkpoint.check()
        config = checkpoint.config
        form = ExpertFormat(args.experts)
        layout = Layout(config, default_mesh(config, args.ranks), form)
        with working("measuring"):
            figures = measure(checkpoint, layout, limits)
    finally:
        if made and not args.keep:
            process.handled()  # gigabytes take longer to remove than Ctrl-C waits
            shutil.rmtree(folder)
    whole = ModelConfig.from_dict(full, str(args.config))
    whole_layout = Layout(whole, default_mesh(whole, 32), form)
    cores = args.host_cores or figures.threads
    disk = args.host_disk * _GB if args.host_disk else figures.disk
    scaled = estimate(figures, whole, whole_layout, _HOSTS, disk, cores)
    _print(args, layout, figures, scaled, disk, cores)


def _sized(full: dict[str, Any], ranks: int, gb: float) -> dict[str, Any]:
    """One layer with as many experts as make up the size."""

    def size(experts: int) -> int:
        return total_bytes(ModelConfig.from_dict(reduced(full, 1, experts, vocab)))

    vocab = max(_VOCAB, ranks)
    least, step = size(ranks), size(2 * ranks) - size(ranks)
    more = max(0, math.ceil((gb * _GB - least) / step))
    return reduced(full, 1, ranks * (1 + more), vocab)


def _checkpoint(args: argparse.Namespace, data: dict[str, Any]) -> tuple[Path, bool]:
    """The folder, and whether it was made now."""
    parent = Path(args.dir)
    if not parent.is_dir():
        raise InputError(f"--dir: expected a folder, found no {parent}")
    total = total_bytes(ModelConfig.from_dict(data))
    kept = parent / f"kimi-bench-{total}"
    if args.keep and kept.exists():
        return kept, False
    free = shutil.disk_usage(parent).free
    if free < total:
        raise InputError(f"--dir: {parent}: expected {total} bytes free, found {free}")
    folder = Path(tempfile.mkdtemp(prefix="kimi-bench-", dir=parent))
    try:
        with transferring("generating", total) as progress:
            for done in generate(folder, data):
                progress(done)
        if args.keep:
            folder.rename(kept)
            folder = kept
    except BaseException:
        process.handled()
        shutil.rmtree(folder)
        raise
    return folder, True


def _print(
    args: argparse.Namespace, layout: Layout, f: Figures, e: Estimate, disk: float, cores: int
) -> None:
    load = os.getloadavg()[0]
    if args.json:
        report = dataclasses.asdict(f) | {"share": f.share, "load": load}
        print_json(report | {"estimate": dataclasses.asdict(e) | {"seconds": e.seconds}})
        return
    print(
        f"{f.source_bytes / _GB:.2f} GB, {layout.config.num_experts} experts, to "
        f"{f.destination_bytes / _GB:.2f} GB on {layout.mesh.ranks} ranks ({layout.mesh.name}), "
        f"experts {layout.expert_format}, {f.threads} workers, load average {load:.1f}"
    )
    print("of checkpoint bytes            GB/s  CPU-s/GB")
    slower_cached, slower = min(f.cached, f.copy), min(f.disk, f.copy)
    rows = [
        ("disk: files, not cached", "disk", "bound"),
        ("disk: files, cached", "cached", "bound"),
        ("copy into new memory", "copy", "bound"),
        ("read, not cached", "read", _of(f.read, f.disk, "disk")),
        ("re-encode, proven", "reencode", _of(f.reencode, f.copy, "copy")),
        ("re-encode and layout", "pack", _of(f.pack, f.copy, "copy")),
        ("placement", "place", _of(f.place, f.copy, "copy")),
        ("load, cached", "warm", _of(f.warm, slower_cached, "slower bound")),
        ("load, not cached", "cold", _of(f.cold, slower, "slower bound")),
    ]
    for title, name, note in rows:
        if name in f.cpu:
            rate, used = getattr(f, name) / _GB, f.cpu[name] * _GB
            print(f"  {title:<26} {rate:6.2f}  {used:8.2f}  {note}")
    print(
        f"peak memory beyond the destination: {f.extra_bytes / _GB:.2f} GB (bound "
        f"{f.bound_bytes / _GB:.2f})"
    )
    print(
        f"the full model on {e.hosts} hosts, estimated: {e.seconds:.0f} s; each host reads "
        f"{e.read_bytes / _GB:.0f} GB in {e.read_s:.0f} s, packs {e.packed_bytes / _GB:.0f} GB in "
        f"{e.pack_s:.0f} s, fills {e.destination_bytes / _GB:.0f} GB in {e.place_s:.0f} s\n"
        f"  assuming {disk / _GB:.2f} GB/s of disk and {cores} cores a host, each as fast as one "
        "here; that the three overlap;\n  that rows are read whole (w2, o_proj, down_proj and the "
        "embedding by every host); and transfers to devices at memory speed"
    )


def _of(rate: float, bound: float, name: str) -> str:
    return f"{100 * rate / bound:3.0f} % of {name}"
