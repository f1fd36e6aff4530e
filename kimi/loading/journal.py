"""Which files of a store are finished: the files themselves say so.

A file has its name once it is complete and on disk, and its header says what it belongs to and what
its bytes are (see `shard`). So there is no list to be kept: nothing is lost if the work is divided
anew, and the manifest is written by whoever finds that no file is missing any more, the same text
whoever it is. Own files are read whole before they are kept, those of others are not: loading
checks every byte.
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
from kimi.loading.shard import Nowhere, Shard, read_metadata

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
    """What of a store is finished and whole. The ranks of `share` must be held (see `folder`).

    Raises:
      StoreError: the store is for something else.
    """

    def __init__(self, store: Path, identity: Identity, share: Share):
        self._store, self._identity = store, identity
        self._own = share.ranks(identity.layout.mesh.ranks)
        self._nowhere = Nowhere(identity.layout)
        self._listed = self._manifest_files()
        self._done: dict[str, FileRecord] = {}
        if not self._listed:
            for path in sorted(store.glob(f"{rank_folder(None)}/*.safetensors")):
                if (found := read_metadata(path)) is not None:
                    check_same(str(path), identity.short_fields(), found)
        for rank in self._own:
            for path in (store / rank_folder(rank)).glob(f"*{PART}"):
                path.unlink()  # of a writer that was killed

    def missing(self, piece: int) -> list[int]:
        """Own ranks whose file of this piece is not finished, or damaged.

        Raises:
          StoreError: another writer, which began at the same time, writes something else.
        """
        for rank in set(range(self._identity.layout.mesh.ranks)) - set(self._own):
            shard = self._shard(rank, piece)
            shard.record(self._store / shard.name)
        with ThreadPoolExecutor(4) as pool:
            whole = pool.map(lambda rank: self._is_whole(self._shard(rank, piece)), self._own)
            return [rank for rank, good in zip(self._own, whole, strict=True) if not good]

    def finish(self, rank: int, piece: int) -> None:
        """Makes a file, of which the data is written, a part of the store; several threads may.

        Raises:
          StoreError: it is not what the manifest says: something else than the file has changed.
        """
        shard = self._shard(rank, piece)
        path, part = self._store / shard.name, self._store / (shard.name + PART)
        with Files() as files:
            crc32 = shard.read(part, files, self._nowhere)
        with part.open("r+b") as file, named(part):
            file.write(shard.header(crc32))
            file.flush()
            os.fsync(file.fileno())
        record = FileRecord(part.stat().st_size, crc32)
        if self._listed.get(shard.name, record) != record:
            raise StoreError(
                f"{path}: expected {self._listed[shard.name].crc32}, as the manifest says, found "
                f"{crc32}: checkpoint or library give other weights than they did"
            )
        part.rename(path)
        _sync_folder(path.parent)
        self._done[shard.name] = record

    def close(self) -> Manifest | None:
        """Writes the manifest; None if files of others are missing."""
        files = self._listed | self._done
        for name, place in file_names(self._identity.layout).items():
            if name not in files:
                record = self._shard(*place).record(self._store / name)
                if record is None:
                    return None
                files[name] = record
        manifest = Manifest(self._identity, files)
        if self._listed != files:
            # In a folder that nobody else writes: several processes may find that all is there.
            part = self._store / rank_folder(self._own[0]) / (MANIFEST + PART)
            with part.open("w", encoding="utf-8") as file, named(part):
                file.write(manifest.text())
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._store / MANIFEST)
            _sync_folder(self._store)
        return manifest

    def _shard(self, rank: int, piece: int) -> Shard:
        return Shard(self._identity, rank, piece)

    def _is_whole(self, shard: Shard) -> bool:
        path = self._store / shard.name
        record = shard.record(path)
        if record is None or self._listed.get(shard.name, record) != record:
            return False
        try:
            with Files() as files:
                whole = shard.read(path, files, self._nowhere) == record.crc32
        except LoadError:
            return False
        if whole:
            self._done[shard.name] = record
        return whole

    def _manifest_files(self) -> dict[str, FileRecord]:
        """What the manifest lists; none if the store is unfinished. A damaged one is removed."""
        path = self._store / MANIFEST
        if not path.exists():
            return {}
        try:
            found = Manifest.read(self._store)
        except DamagedError:
            path.unlink()
            return {}
        check_same(str(self._store), self._identity.fields(), found.identity.fields())
        return found.files


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Gives an OSError of a file descriptor the file's name."""
    try:
        yield
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from None


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with named(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
