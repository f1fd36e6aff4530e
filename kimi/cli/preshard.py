"""`preshard`: writes the weights as the ranks of a mesh hold them, or verifies what was written."""

import argparse
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as Speed

from kimi.checkpoint import Checkpoint
from kimi.cli.cluster import COUNT, INDEX
from kimi.cli.console import print_json, stderr, working
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
                   "must be there. A store that is there is completed, and repaired")  # fmt: skip
    p.add_argument("--ranks", "--mesh", type=int, choices=RANKS, help="ranks, one a TensorCore")
    p.add_argument("--experts", choices=[str(f) for f in ExpertFormat], help="their form in memory")
    p.add_argument("--share", metavar="I/N", help="write only the files of share I (from 0) of N "
                   "shares of the ranks (default: this host's, under scripts/launch)")  # fmt: skip
    p.add_argument("--verify", action="store_true", help="read all of a finished store again")
    add_limits(p)
    p.add_argument("--json", action="store_true", help="print a summary as JSON")


def add_limits(p: argparse.ArgumentParser) -> None:
    """Options that become `Limits`."""
    default = Limits()
    p.add_argument("--memory", type=number(), default=default.memory_bytes / _GIB, metavar="GIB",
                   help="memory to read into")  # fmt: skip
    p.add_argument("--readers", type=int, default=default.readers, help="reading threads")
    p.add_argument("--workers", type=int, default=default.workers, help="packing threads")


def limits_of(args: argparse.Namespace) -> Limits:
    """The limits asked for. Raises LoadError or InputError."""
    if not math.isfinite(args.memory):
        raise InputError(f"--memory: expected a finite number, found {args.memory}")
    return Limits(int(args.memory * _GIB), args.readers, args.workers)


def run(args: argparse.Namespace) -> None:
    """Runs the command."""
    limits, path = limits_of(args), Path(args.out)
    if not args.verify:
        check_place(args.out)
        share = _share(args.share)
        if not _write(args, path, limits, share):
            _print_share(args, path, share)
            return
    else:
        store = Store(args.out)
        _check_options(args, store)
        total = store.nbytes(range(store.layout.mesh.ranks))
        with transferring("verifying the store", total) as progress:
            store.verify(limits, progress)
    _print(args, Store(path))


def _check_options(args: argparse.Namespace, store: Store) -> None:
    """What is asked for beside --verify must be true of the store."""
    mesh = store.layout.mesh
    if args.ranks is not None and args.ranks != mesh.ranks:
        raise InputError(f"{store.path}: mesh: expected {args.ranks} ranks, found {mesh.ranks}")
    if args.experts is not None:
        store.require({"experts": args.experts})
    if args.model is not None:
        with working("reading headers"):
            identity = Identity.of(Checkpoint.open(args.model), store.layout)
        store.require(identity.fields())


def _share(option: str | None) -> Share:
    """The share asked for, or that of this host."""
    index, count = os.environ.get(INDEX), os.environ.get(COUNT)
    text = option or (f"{index}/{count}" if index and count else "0/1")
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise InputError(f"--share: expected I/N, as in 0/4, found {text!r}")
    return Share(int(parts[0]), int(parts[1]))


def _write(args: argparse.Namespace, path: Path, limits: Limits, share: Share) -> bool:
    """Whether the store is complete."""
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
    """A progress bar of bytes on a terminal; call what it gives with the bytes done."""
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), Speed()
    with Progress(
        *columns, TimeRemainingColumn(), console=stderr, transient=True,
        disable=not stderr.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


def _print_share(args: argparse.Namespace, path: Path, share: Share) -> None:
    if args.json:
        share_fields = {"index": share.index, "count": share.count}
        print_json({"store": os.fspath(path), "share": share_fields, "complete": False})
    else:
        print(
            f"{path}: share {share.index} of {share.count} is written; the store is complete when "
            "all are"
        )


def _print(args: argparse.Namespace, store: Store) -> None:
    layout = store.layout
    size = store.nbytes(range(layout.mesh.ranks))
    if args.json:
        print_json({
            "store": os.fspath(store.path),
            "ranks": layout.mesh.ranks,
            "mesh": layout.mesh.name,
            "experts": str(layout.expert_format),
            "bytes": size,
            "verified": args.verify,
        })  # fmt: skip
    else:
        done = "verified" if args.verify else "complete"
        print(
            f"{store.path}: {done}: {layout.mesh.ranks} ranks ({layout.mesh.name}), experts "
            f"{layout.expert_format}, {size:,} bytes"
        )
