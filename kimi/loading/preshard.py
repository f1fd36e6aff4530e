"""Writes a store: one file for each rank and piece, whole or not at all.

A file grows under another name, is read back for its checksums, gets its header, is flushed to
disk, and only then gets its name. Killed at any moment, the next run keeps the files that are there
and whole, and writes the others: at most two pieces are done twice. The manifest comes last. A run
on a finished store does the same: it writes what is damaged or missing.

Several processes may share the work, on hosts that see one folder: each writes the files of its own
ranks, and whichever finishes last writes the manifest. See `journal`. No rank has two writers at a
time. See `folder`.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from kimi.checkpoint import Checkpoint
from kimi.kernels.layout import Layout
from kimi.loading import folder
from kimi.loading.arrays import Words, dtype, flat_shape, pieces
from kimi.loading.errors import StoreError
from kimi.loading.journal import ALL, PART, Journal, Share, named
from kimi.loading.manifest import Identity, Manifest
from kimi.loading.shard import Shard
from kimi.loading.stream import Limits, checkpoint_totals, stream
from kimi.loading.workers import Progress


def preshard(
    checkpoint: Checkpoint,
    identity: Identity,
    store: str | os.PathLike[str],
    limits: Limits,
    progress: Progress,
    share: Share = ALL,
) -> Manifest | None:
    """Writes, completes or repairs a store, or a share of it.

    Args:
      checkpoint: the source; `identity` names it.
      identity: what the store is for.
      store: the folder; only its last part is made.
      progress: called with the bytes of the checkpoint that are done, from 0 to `source_bytes`.
      share: the ranks whose files are written here.
    Returns: the manifest, also if the store was complete already; None if files of other shares are
      missing.
    Raises:
      StoreError: the folder holds something else, is being written by another process, or cannot be
        written (a full disk): what is finished stays, and the same call continues.
      KimiError: as `stream`.
    """
    layout, store = identity.layout, folder.check_place(store)
    share_ranks = share.ranks(layout.mesh.ranks)
    with ExitStack() as stack:
        stack.enter_context(_writing(store))
        folder.make(store, layout.mesh.ranks)
        stack.enter_context(folder.held(store, share_ranks))
        journal = Journal(store, identity, share)
        pool = stack.enter_context(ThreadPoolExecutor(4))
        finishing: list[Future[None]] = []
        done = 0
        for piece in range(pieces(layout)):
            ranks = journal.missing(piece)
            total = checkpoint_totals(layout, checkpoint, share_ranks, [piece]).nbytes

            def piece_progress(piece_done: int, before: int = done) -> None:
                progress(before + piece_done)

            if ranks:
                with PieceWriter(identity, store, piece, ranks) as writer:
                    stream(layout, checkpoint, ranks, writer, limits, piece_progress, [piece])
                _all(finishing)  # at most one piece waits for the disk
                finishing = [pool.submit(journal.finish, rank, piece) for rank in ranks]
            done += total
            progress(done)
        _all(finishing)
        return journal.close()


def source_bytes(checkpoint: Checkpoint, layout: Layout, share: Share = ALL) -> int:
    """Bytes that `preshard` reads. Raises CheckpointError."""
    return checkpoint_totals(layout, checkpoint, share.ranks(layout.mesh.ranks)).nbytes


def _all(futures: Sequence[Future[None]]) -> None:
    for future in futures:
        future.result()


@contextmanager
def _writing(store: Path) -> Iterator[None]:
    """Errors of the file system, with the file, and what to do."""
    try:
        yield
    except OSError as e:
        raise StoreError(
            f"{e.filename or store}: cannot be written: {e.strerror}; what is finished stays, the "
            "same command continues"
        ) from None


class PieceWriter:
    """Writes one piece: a growing file for each rank, `*.part`."""

    def __init__(self, identity: Identity, store: Path, piece: int, ranks: Sequence[int]):
        self._layout = identity.layout
        self._paths: dict[int, Path] = {}
        self._files: dict[int, int] = {}
        # First row and first byte. Headers, and so the bytes, differ from rank to rank.
        self._starts: dict[tuple[int, str], tuple[int, int]] = {}
        try:
            for rank in ranks:
                self._create(store, Shard(identity, rank, piece))
        except BaseException as e:
            self.__exit__(type(e))
            raise

    def _create(self, store: Path, shard: Shard) -> None:
        path = store / (shard.name + PART)
        path.parent.mkdir(exist_ok=True)
        self._paths[shard.rank] = path
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._files[shard.rank] = os.open(path, flags, 0o644)
        with named(path):
            # A full disk is noticed now.
            os.posix_fallocate(self._files[shard.rank], 0, shard.nbytes)
        for segment, start in shard.starts():
            self._starts[shard.rank, segment.array] = segment.row, start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *unused: object) -> None:
        """Closes the files; after an error they are of no use, and a full disk needs the room."""
        while self._files:
            rank, descriptor = self._files.popitem()
            os.close(descriptor)
            if kind is not None:
                self._paths[rank].unlink(missing_ok=True)

    @contextmanager
    def chunk(self, rank: int, array: str, row: int, rows: int) -> Iterator[Words]:
        """Memory that is written to the rank's file when the block ends."""
        width = flat_shape(self._layout, array)[1]
        part = np.empty((rows, width), dtype(array))
        yield part
        first, start = self._starts[rank, array]
        at, data = start + (row - first) * part[0].nbytes, part.reshape(-1).view(np.uint8).data
        with named(self._paths[rank]):
            while data:
                done = os.pwrite(self._files[rank], data, at)
                at, data = at + done, data[done:]
