"""Which files of an unfinished store are finished.

    store/journal.jsonl          of a process that writes all ranks
    store/journal-1-of-4.jsonl   of one that writes the second quarter of them

The first line says what the store is for, and each other line one finished file. A process appends
to its own journal only and reads them all, so nothing is lost if the work is divided anew. The
manifest is written by whoever finds that no file is missing any more, the same text whoever it is.
Own files are read again before they are kept, those of others are not: loading checks every byte.
"""

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from kimi.checkpoint import SafetensorsFile
from kimi.errors import CheckpointError
from kimi.loading.errors import StoreError
from kimi.loading.manifest import (
    MANIFEST,
    FileRecord,
    Identity,
    Manifest,
    check_same,
    file_name,
    file_names,
)
from kimi.loading.store import file_crcs

JOURNAL = "journal.jsonl"
PART = ".part"  # behind the name of what is being written
_ANY_JOURNAL = re.compile(r"journal(-\d+-of-\d+)?\.jsonl")


@dataclass(frozen=True)
class Share:
    """One of several shares of the ranks, neighbours together.

    Attributes:
      index, count: which of how many.

    Raises:
      StoreError: there is no such share.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise StoreError(
                f"share: expected an index from 0 to {self.count - 1}, found {self.index}"
            )

    @property
    def journal(self) -> str:
        """The name of its journal."""
        return JOURNAL if self.count == 1 else f"journal-{self.index}-of-{self.count}.jsonl"

    def ranks(self, count: int) -> range:
        """Its ranks, of `count`. Raises StoreError if there are none."""
        start, stop = (i * count // self.count for i in (self.index, self.index + 1))
        if start == stop:
            raise StoreError(f"share: expected at most {count}, one a rank, found {self.count}")
        return range(start, stop)


ALL = Share(0, 1)


class Journal:
    """What of an unfinished store is finished, and the journal of one share of it.

    Raises:
      StoreError: the folder is for something else, or holds other things.
    """

    def __init__(self, store: Path, identity: Identity, share: Share):
        self._store, self._identity, self._share = store, identity, share
        own = share.ranks(identity.layout.mesh.ranks)
        self._names = {n: at for n, at in file_names(identity.layout).items() if at[0] in own}
        store.mkdir(parents=True, exist_ok=True)
        self._path = store / share.journal
        self._done: dict[str, FileRecord] = {}
        found = {path.name for path in store.iterdir()}  # at one time: others may be writing
        if not any(_ANY_JOURNAL.match(name) for name in found) and found:
            raise StoreError(f"{store}: expected an empty folder, found {min(found)}")
        self._keep(self._read())
        if not self._path.exists():
            self._replace(self._path, json.dumps(identity.fields()) + "\n")
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        os.close(self._file)

    @staticmethod
    def remove(store: Path, share: Share) -> None:
        """Removes all journals of a finished store, and what this share was about to replace."""
        for path in store.iterdir():
            own = path.name.startswith(share.journal) and path.name.endswith(PART)
            if own or _ANY_JOURNAL.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def missing(self, piece: int) -> list[int]:
        """Own ranks whose file of this piece is not finished."""
        own = [(name, rank) for name, (rank, p) in self._names.items() if p == piece]
        return [rank for name, rank in own if name not in self._done]

    def finish(self, rank: int, piece: int) -> None:
        """Makes a written file a part of the store; several threads may."""
        name = file_name(self._identity.layout, rank, piece)
        part, path = self._store / (name + PART), self._store / name
        with part.open("rb") as file, named(part):
            os.fsync(file.fileno())
        record = FileRecord(part.stat().st_size, file_crcs(SafetensorsFile(part)))
        part.rename(path)
        _sync_folder(path.parent)
        line = json.dumps({"file": name, **asdict(record)}) + "\n"
        with named(self._path):
            os.write(self._file, line.encode())  # appends as a whole
            os.fsync(self._file)
        self._done[name] = record

    def close(self) -> Manifest | None:
        """Writes the manifest and removes the journals; None if files of others are missing."""
        names = file_names(self._identity.layout)
        records = self._read() | self._done
        if any(name not in records for name in names):
            # Unless another process has just seen the last file, and removed the journals.
            done = (self._store / MANIFEST).exists()
            return Manifest.read(self._store) if done else None
        manifest = Manifest(self._identity, {name: records[name] for name in names})
        self._replace(self._store / MANIFEST, manifest.text())
        self.remove(self._store, self._share)
        _sync_folder(self._store)
        return manifest

    def _read(self) -> dict[str, FileRecord]:
        """The files that all journals list."""
        found: dict[str, FileRecord] = {}
        for path in sorted(self._store.iterdir()):
            if _ANY_JOURNAL.fullmatch(path.name):
                found |= self._read_one(path)
        return found

    def _read_one(self, path: Path) -> dict[str, FileRecord]:
        """A torn last line does not count; it is removed from the own journal."""
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return {}  # the store has just been finished
        whole, torn = lines[:-1], lines[-1]
        if torn and path == self._path:
            self._replace(path, b"\n".join([*whole, b""]).decode())
        try:
            first, *entries = (json.loads(line) for line in whole)
            records = {e["file"]: FileRecord.from_json(e, str(path)) for e in entries}
        except (ValueError, KeyError, TypeError) as e:
            raise StoreError(f"{path}: damaged: {e}") from None
        check_same(str(self._store), self._identity.fields(), first)
        return records

    def _keep(self, records: dict[str, FileRecord]) -> None:
        """Keeps own finished files that still are what they were."""
        own = {name: record for name, record in records.items() if name in self._names}
        with ThreadPoolExecutor(4) as pool:
            kept = pool.map(lambda item: self._is_whole(*item), own.items())
            self._done |= {n: own[n] for n, good in zip(own, kept, strict=True) if good}

    def _is_whole(self, name: str, record: FileRecord) -> bool:
        try:
            return file_crcs(SafetensorsFile(self._store / name)) == record.crc32
        except (CheckpointError, StoreError):
            return False

    def _replace(self, path: Path, text: str) -> None:
        """Writes a file, whole or not at all; several processes may at once."""
        part = path.with_name(f"{self._share.journal}-{path.name}{PART}")
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)


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
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
