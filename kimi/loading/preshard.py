"""Writes a store: one file for each rank and piece, whole or not at all.

A file grows under another name, is flushed to disk, read back for its checksums, and only then
gets its name; a line in the journal says that it is finished. Killed at any moment, the next run
keeps the files that the journal lists, after reading them again, and writes the others. The
manifest comes last and the journal goes.

    store/journal.jsonl   first line: what the store is for; then one line a finished file
"""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from kimi.checkpoint import Checkpoint, SafetensorsFile
from kimi.errors import CheckpointError
from kimi.kernels.layout import Layout
from kimi.loading.errors import StoreError
from kimi.loading.manifest import (
    MANIFEST,
    FileRecord,
    Identity,
    Manifest,
    check_same,
    file_name,
    file_names,
    header,
)
from kimi.loading.sinks import Words, dtype, flat_shape, pieces, segments
from kimi.loading.store import file_crcs
from kimi.loading.stream import Limits, Progress, checkpoint_totals, stream

JOURNAL = "journal.jsonl"
_PART = ".part"


def preshard(
    checkpoint: Checkpoint, identity: Identity, store: Path, limits: Limits, progress: Progress
) -> Manifest:
    """Writes or completes a store.

    Args:
      checkpoint: the source; `identity` names it.
      identity: what the store is for.
      progress: called with the bytes of the checkpoint that are done, from 0 to `source_bytes`.
    Returns: the manifest, also if the store was complete already.
    Raises:
      StoreError: the folder holds something else, or cannot be written (a full disk): what is
        finished stays, and the same call continues.
      KimiError: as `stream`.
    """
    layout = identity.layout
    if (store / MANIFEST).exists():
        found = Manifest.read(store)
        check_same(str(store), identity.fields(), found.identity.fields())
        (store / JOURNAL).unlink(missing_ok=True)  # killed after the manifest
        return found
    with _writing(store), Journal(store, identity) as journal, ThreadPoolExecutor(4) as pool:
        finishing: list[Future[None]] = []
        done = 0
        for piece in range(pieces(layout)):
            ranks = journal.missing(piece)
            total = checkpoint_totals(layout, checkpoint, range(layout.mesh.ranks), [piece]).nbytes

            def piece_progress(own: int, before: int = done) -> None:
                progress(before + own)

            if ranks:
                with PieceWriter(layout, store, piece, ranks) as writer:
                    stream(layout, checkpoint, ranks, writer, limits, piece_progress, [piece])
                _all(finishing)  # at most one piece waits for the disk
                finishing = [pool.submit(journal.finish, rank, piece) for rank in ranks]
            done += total
            progress(done)
        _all(finishing)
        return journal.close()


def source_bytes(checkpoint: Checkpoint, layout: Layout) -> int:
    """Bytes that `preshard` reads. Raises CheckpointError."""
    return checkpoint_totals(layout, checkpoint, range(layout.mesh.ranks)).nbytes


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
    """A sink of one piece: a growing file for each rank, `*.part`."""

    def __init__(self, layout: Layout, store: Path, piece: int, ranks: Sequence[int]):
        self._layout = layout
        self._paths: dict[int, Path] = {}
        self._files: dict[int, int] = {}
        self._starts: dict[str, tuple[int, int]] = {}  # array -> its first row, and its first byte
        self._piece = piece
        try:
            for rank in ranks:
                self._create(store, rank)
        except BaseException:
            self.__exit__()
            raise

    def _create(self, store: Path, rank: int) -> None:
        begin = header(self._layout, rank, self._piece)
        at = len(begin)
        for segment in segments(self._layout, self._piece):
            self._starts[segment.array] = segment.row, at
            at += segment.nbytes
        path = store / (file_name(self._layout, rank, self._piece) + _PART)
        path.parent.mkdir(exist_ok=True)
        self._paths[rank] = path
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._files[rank] = os.open(path, flags, 0o644)
        with _named(path):
            os.posix_fallocate(self._files[rank], 0, at)  # a full disk is noticed now
            _write(self._files[rank], memoryview(begin), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    @contextmanager
    def chunk(self, rank: int, array: str, row: int, rows: int) -> Iterator[Words]:
        """Memory that is written to the rank's file when the block ends."""
        width = flat_shape(self._layout, array)[1]
        part = np.empty((rows, width), dtype(array))
        yield part
        first, start = self._starts[array]
        with _named(self._paths[rank]):
            at = start + (row - first) * width * part.itemsize
            _write(self._files[rank], part.reshape(-1).view(np.uint8).data, at)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Gives an OSError of a file descriptor the file's name."""
    try:
        yield
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from None


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)


class Journal:
    """What of an unfinished store is finished.

    Raises:
      StoreError: the folder is for something else, or holds other things.
    """

    def __init__(self, store: Path, identity: Identity):
        self._store, self._identity = store, identity
        self._names = file_names(identity.layout)
        store.mkdir(parents=True, exist_ok=True)
        self._path = store / JOURNAL
        self._done: dict[str, FileRecord] = {}
        first, records = self._read()
        if first is None:
            others = sorted({p.name for p in store.iterdir()} - {JOURNAL + _PART})
            if others:
                raise StoreError(f"{store}: expected an empty folder, found {others[0]}")
            _replace(self._path, json.dumps(identity.fields()) + "\n")
        else:
            check_same(str(store), identity.fields(), first)
            self._keep(records)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        os.close(self._file)

    def missing(self, piece: int) -> list[int]:
        """Ranks whose file of this piece is not finished."""
        own = [(name, rank) for name, (rank, p) in self._names.items() if p == piece]
        return [rank for name, rank in own if name not in self._done]

    def finish(self, rank: int, piece: int) -> None:
        """Makes a written file a part of the store; several threads may."""
        name = file_name(self._identity.layout, rank, piece)
        part, path = self._store / (name + _PART), self._store / name
        with part.open("rb") as file, _named(part):
            os.fsync(file.fileno())
        record = FileRecord(part.stat().st_size, file_crcs(SafetensorsFile(part)))
        part.rename(path)
        _sync_folder(path.parent)
        line = json.dumps({"file": name, **asdict(record)}) + "\n"
        with _named(self._path):
            os.write(self._file, line.encode())  # appends as a whole
            os.fsync(self._file)
        self._done[name] = record

    def close(self) -> Manifest:
        """Writes the manifest and removes the journal."""
        manifest = Manifest(self._identity, {name: self._done[name] for name in self._names})
        _replace(self._store / MANIFEST, manifest.text())
        self._path.unlink()
        _sync_folder(self._store)
        return manifest

    def _read(self) -> tuple[dict[str, Any] | None, dict[str, FileRecord]]:
        """The first line, and the files that were finished. A torn last line does not count."""
        if not self._path.exists():
            return None, {}
        lines = self._path.read_bytes().split(b"\n")
        whole, torn = lines[:-1], lines[-1]
        if torn:
            _replace(self._path, b"\n".join([*whole, b""]).decode())
        try:
            first, *entries = (json.loads(line) for line in whole)
            return first, {e["file"]: FileRecord.from_json(e, str(self._path)) for e in entries}
        except (ValueError, KeyError, TypeError) as e:
            raise StoreError(f"{self._path}: damaged: {e}") from None

    def _keep(self, records: dict[str, FileRecord]) -> None:
        """Keeps finished files that still are what they were."""
        with ThreadPoolExecutor(4) as pool:
            kept = pool.map(lambda item: self._is_whole(*item), records.items())
            for (name, record), good in zip(records.items(), kept, strict=True):
                if good and name in self._names:
                    self._done[name] = record

    def _is_whole(self, name: str, record: FileRecord) -> bool:
        try:
            return file_crcs(SafetensorsFile(self._store / name)) == record.crc32
        except (CheckpointError, StoreError):
            return False


def _replace(path: Path, text: str) -> None:
    """Writes a file, whole or not at all."""
    part = path.with_name(path.name + _PART)
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
