"""Which files of a store are finished: the files themselves say so.

A file has its name once it is complete and on disk, and its header says what it belongs to and what
its bytes are (see `shard`). So there is no list to keep: nothing is lost if the ranks are shared
out differently, and the manifest is written by whichever process finds that no file is missing, the
same text in any case. A process reads its own files whole before it keeps them, those of other
shares only when they are loaded, where every byte is checked.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kimi import values
from kimi.loading.errors import DamagedError, LoadError, StoreError
from kimi.loading.manifest import (
    MANIFEST,
    FileRecord,
    Identity,
    Manifest,
    check_same,
    file_names,
    rank_folder,
)
from kimi.loading.reading import Files
from kimi.loading.shard import NullWriter, Shard, read_metadata
from kimi.loading.workers import WorkerPool

PART = ".part"  # behind the name of what is being written


@dataclass(frozen=True)
class Share:
    """One of several shares of the ranks, neighbours together.

    Attributes:
      index, count: which of how many.

    Raises:
      InputError: no number of shares.
      StoreError: there is no such share.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        values.integer("share: index", self.index)
        if self.index >= values.integer("share: count", self.count, 1):
            raise StoreError(
                f"share: expected an index from 0 to {self.count - 1}, found {self.index}"
            )

    def ranks(self, count: int) -> range:
        """Its ranks, of `count`. Raises StoreError if there are none."""
        start, stop = (i * count // self.count for i in (self.index, self.index + 1))
        if start == stop:
            raise StoreError(f"share: expected at most {count}, one a rank, found {self.count}")
        return range(start, stop)


ALL = Share(0, 1)


class Journal:
    """Which files of a store are finished. The ranks of `share` must be held (see `folder`).

    Raises:
      StoreError: the store is for something else.
    """

    def __init__(self, store: Path, identity: Identity, share: Share):
        self._store, self._identity = store, identity
        self._ranks = share.ranks(identity.layout.mesh.ranks)
        self._listed = self._manifest_files()
        if not self._listed:
            for path in sorted(store.glob(f"{rank_folder(None)}/*.safetensors")):
                if (metadata := read_metadata(path)) is not None:
                    check_same(str(path), identity.short_fields(), metadata)
        for rank in self._ranks:
            for path in (store / rank_folder(rank)).glob(f"*{PART}"):
                path.unlink()  # of a writer that was killed

    def missing(self, piece: int) -> list[int]:
        """Ranks of the share whose file of this piece is not finished, or damaged.

        Raises:
          StoreError: another writer, which began at the same time, writes something else.
        """
        for rank in set(range(self._identity.layout.mesh.ranks)) - set(self._ranks):
            self._record(rank, piece)
        with ThreadPoolExecutor(4) as pool:
            whole = pool.map(lambda rank: self._is_whole(rank, piece), self._ranks)
            return [rank for rank, good in zip(self._ranks, whole, strict=True) if not good]

    def finish(self, rank: int, piece: int) -> None:
        """Makes a file, of which the data is written, a part of the store; several threads may.

        Raises:
          StoreError: it is not what the manifest says: something else than the file has changed.
        """
        shard = Shard(self._identity, rank, piece)
        path, part = self._store / shard.name, self._store / (shard.name + PART)
        crc32 = self._read(shard, part)
        listed = self._listed.get(shard.name)
        if listed is not None and listed.crc32 != crc32:
            raise StoreError(
                f"{path}: expected {listed.crc32}, as the manifest says, found {crc32}: checkpoint "
                "or library give other weights than they did"
            )
        _publish(part, path, shard.header(crc32))

    def close(self) -> Manifest | None:
        """Writes the manifest if there is none; None if files of other shares are missing."""
        if self._listed:
            return Manifest(self._identity, self._listed)
        files = {}
        for name, place in file_names(self._identity.layout).items():
            record = self._record(*place)
            if record is None:
                return None
            files[name] = record
        manifest = Manifest(self._identity, files)
        # In a folder that nobody else writes: several processes may find that all is there.
        part = self._store / rank_folder(self._ranks[0]) / (MANIFEST + PART)
        _publish(part, self._store / MANIFEST, manifest.text().encode())
        return manifest

    def _record(self, rank: int, piece: int) -> FileRecord | None:
        shard = Shard(self._identity, rank, piece)
        return shard.record(self._store / shard.name)

    def _read(self, shard: Shard, path: Path) -> dict[str, str]:
        with Files() as files:
            return shard.read(path, files, NullWriter(self._identity.layout), WorkerPool())

    def _is_whole(self, rank: int, piece: int) -> bool:
        shard, record = Shard(self._identity, rank, piece), self._record(rank, piece)
        if record is None or self._listed.get(shard.name, record) != record:
            return False
        try:
            return self._read(shard, self._store / shard.name) == record.crc32
        except LoadError:
            return False

    def _manifest_files(self) -> dict[str, FileRecord]:
        """What the manifest lists; none if the store is unfinished. A damaged one is removed."""
        path = self._store / MANIFEST
        if not path.exists():
            return {}
        try:
            manifest = Manifest.read(self._store)
        except DamagedError:
            path.unlink()
            return {}
        check_same(str(self._store), self._identity.fields(), manifest.identity.fields())
        return manifest.files


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Gives an OSError of a file descriptor the file's name."""
    try:
        yield
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from None


def _publish(part: Path, path: Path, begin: bytes) -> None:
    """Writes the beginning of a file; gives it its name once it is on disk."""
    with named(part), open(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        file.write(begin)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with named(path.parent):
            os.fsync(folder)
    finally:
        os.close(folder)
