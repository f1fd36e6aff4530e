"""`preshard`: writes the weights as the ranks of a mesh hold them, or verifies such a store."""

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

from kimi.checkpoint import Checkpoint
from kimi.cli.cluster import COUNT, INDEX
from kimi.cli.console import print_json, progress_bar, working
from kimi.cli.options import number
from kimi.errors import InputError
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import RANKS, default_mesh
from kimi.loading.folder import check_place
from kimi.loading.journal import Share
from kimi.loading.manifest import Identity
from kimi.loading.preshard import preshard, source_bytes
from kimi.loading.store import Store
from kimi.loading.stream import Limits

_GIB = 1 << 30


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    p.add_argument("--model", help="folder or hub id of the checkpoint, organisation/name@revision")
    p.add_argument("--out", required=True, metavar="STORE", help="folder of the store; its parent "
                   "must exist. An existing store is completed and repaired")  # fmt: skip
    p.add_argument("--ranks", "--mesh", type=int, choices=RANKS, help="ranks, one per TensorCore")
    p.add_argument(
        "--experts", choices=[str(f) for f in ExpertFormat], help="their format in memory"
    )
    p.add_argument("--share", metavar="I/N", help="write only the files of share I (from 0) of N "
                   "shares of the ranks (default: this host's, under scripts/launch)")  # fmt: skip
    p.add_argument("--verify", action="store_true", help="check all values of a finished store")
    add_limits(p)
    p.add_argument("--json", action="store_true", help="print a summary as JSON")


def add_limits(p: argparse.ArgumentParser) -> None:
    """Options that become `Limits`."""
    default = Limits()
    p.add_argument(
        "--memory", type=number, default=default.memory_bytes / _GIB, metavar="GIB",
        help="size of the read buffers",
    )  # fmt: skip
    p.add_argument("--readers", type=int, default=default.readers, help="reading threads")
    p.add_argument("--workers", type=int, default=default.workers, help="packing threads")


def limits_of(args: argparse.Namespace) -> Limits:
    """The limits of these options. Raises LoadError or InputError."""
    return Limits(int(args.memory * _GIB), args.readers, args.workers)


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    limits, path = limits_of(args), Path(args.out)
    if args.verify:
        _verify(args, Store(path), limits)
    else:
        check_place(args.out)
        share = _share(args.share)
        if not _write(args, path, limits, share):
            _print_share(args, path, share)
            return
    _print_store(args, Store(path))


def _verify(args: argparse.Namespace, store: Store, limits: Limits) -> None:
    """Reads the whole store; its mesh, format and checkpoint must be those of the options."""
    mesh = store.layout.mesh
    if args.ranks not in (None, mesh.ranks):
        raise InputError(f"{store.path}: mesh: expected {args.ranks} ranks, found {mesh.ranks}")
    if args.experts is not None:
        store.require({"experts": args.experts})
    if args.model is not None:
        with working("reading headers"):
            identity = Identity.of(Checkpoint.open(args.model), store.layout)
        store.require(identity.fields())
    with transferring("verifying the store", store.nbytes(range(mesh.ranks))) as progress:
        store.verify(limits, progress)


def _share(option: str | None) -> Share:
    """The share of the option, default that of this host."""
    index, count = os.environ.get(INDEX), os.environ.get(COUNT)
    text = option or (f"{index}/{count}" if index and count else "0/1")
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise InputError(f"--share: expected I/N, as in 0/4, found {text!r}")
    return Share(int(parts[0]), int(parts[1]))


def _write(args: argparse.Namespace, path: Path, limits: Limits, share: Share) -> bool:
    """Writes the files of a share; whether the store is then complete."""
    for option in ("model", "ranks", "experts"):
        if getattr(args, option) is None:
            raise InputError(f"--{option}: expected it, or --verify, found neither")
    with working("reading headers"):
        checkpoint = Checkpoint.open(args.model)
        checkpoint.check()
        mesh = default_mesh(checkpoint.config, args.ranks)
        layout = Layout(checkpoint.config, mesh, ExpertFormat(args.experts))
        identity = Identity.of(checkpoint, layout)
        total = source_bytes(checkpoint, layout, share)
    with transferring("writing the store", total) as progress:
        return preshard(checkpoint, identity, path, limits, progress, share) is not None


@contextmanager
def transferring(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar of bytes; call the function yielded with the bytes done."""
    columns = "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with progress_bar(*columns, TimeRemainingColumn()) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


def _print_share(args: argparse.Namespace, path: Path, share: Share) -> None:
    if args.json:
        fields = {"index": share.index, "count": share.count}
        print_json({"store": str(path), "share": fields, "complete": False})
        return
    written = f"share {share.index} of {share.count} is written"
    print(f"{path}: {written}; the store is complete when all are")


def _print_store(args: argparse.Namespace, store: Store) -> None:
    mesh, experts = store.layout.mesh, str(store.layout.expert_format)
    size = store.nbytes(range(mesh.ranks))
    if args.json:
        fields = {"ranks": mesh.ranks, "mesh": mesh.name, "experts": experts, "bytes": size}
        print_json({"store": str(store.path), **fields, "verified": args.verify})
        return
    done = "verified" if args.verify else "complete"
    form = f"{mesh.ranks} ranks ({mesh.name}), experts {experts}, {size:,} bytes"
    print(f"{store.path}: {done}: {form}")
