"""Which files of an unfinished store are finished.

    store/journal.jsonl          of a process that writes all ranks
    store/journal-1-of-4.jsonl   of one that writes the second quarter of them

The first line says what the store is for, and each other line one finished file. A process appends
to its own journal only and reads them all, so nothing is lost if the work is divided anew. The
manifest is written by whoever finds that no file is missing any more, the same text whoever it is;
it then stands for the journals. Own files are read again before they are kept, those of others are
not: loading checks every byte.
"""

import errno
import json
import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from kimi import values
from kimi.checkpoint import SafetensorsFile
from kimi.errors import KimiError
from kimi.fields import parse_json
from kimi.loading.errors import DamagedError, StoreError
from kimi.loading.folder import JOURNAL_STEM
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
from kimi.loading.store import file_crcs

JOURNAL = f"{JOURNAL_STEM}.jsonl"
PART = ".part"  # behind the name of what is being written
_ANY_JOURNAL = re.compile(rf"{JOURNAL_STEM}(-\d+-of-\d+)?\.jsonl")


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
    """What of a store is finished and whole, and the journal of one share of it.

    Raises:
      StoreError: the store is for something else.
    """

    def __init__(self, store: Path, identity: Identity, share: Share):
        self._store, self._identity, self._share = store, identity, share
        own = share.ranks(identity.layout.mesh.ranks)
        self._names = {n: at for n, at in file_names(identity.layout).items() if at[0] in own}
        self._path = store / share.journal
        self._appending = threading.Lock()
        self._file: int | None = None
        self._listed = self._manifest_files()
        self._done = self._whole(self._read())
        if len(self._done) < len(self._names):
            lines = [_line(name, record) for name, record in self._done.items()]
            self._replace(self._path, "".join([json.dumps(identity.fields()) + "\n", *lines]))
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._file is not None:
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
        """Makes a written file a part of the store; several threads may.

        Raises:
          StoreError: it is not what the manifest says: something else than the file has changed.
        """
        name = file_name(self._identity.layout, rank, piece)
        part, path = self._store / (name + PART), self._store / name
        with part.open("rb") as file, named(part):
            os.fsync(file.fileno())
        record = FileRecord(part.stat().st_size, file_crcs(SafetensorsFile(part)))
        if self._listed.get(name, record) != record:
            raise StoreError(
                f"{path}: expected {self._listed[name].crc32}, as the manifest says, found "
                f"{record.crc32}: checkpoint or library give other weights than they did"
            )
        if self._is_whole(name, record):
            part.unlink()  # only the manifest was lost
        else:
            part.rename(path)
        _sync_folder(path.parent)
        self._append(_line(name, record).encode())
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
        if self._listed != manifest.files:
            self._replace(self._store / MANIFEST, manifest.text())
        self.remove(self._store, self._share)
        _sync_folder(self._store)
        return manifest

    def _append(self, line: bytes) -> None:
        """Appends a line as a whole, or not at all."""
        assert self._file is not None  # as a file was missing
        with self._appending, named(self._path):
            size = os.fstat(self._file).st_size
            if os.write(self._file, line) < len(line):
                os.ftruncate(self._file, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)

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

    def _read(self) -> dict[str, FileRecord]:
        """The files that the manifest and all journals list."""
        found = dict(self._listed)
        for path in sorted(self._store.iterdir()):
            if _ANY_JOURNAL.fullmatch(path.name):
                found |= self._read_one(path)
        return found

    def _read_one(self, path: Path) -> dict[str, FileRecord]:
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return {}  # the store has just been finished
        identity, records = parse_journal(raw, str(path))
        if identity is not None:
            check_same(str(self._store), self._identity.fields(), identity)
        return records

    def _whole(self, records: dict[str, FileRecord]) -> dict[str, FileRecord]:
        """Own finished files that still are what they were."""
        own = {name: record for name, record in records.items() if name in self._names}
        with ThreadPoolExecutor(4) as pool:
            kept = pool.map(lambda item: self._is_whole(*item), own.items())
            return {n: own[n] for n, good in zip(own, kept, strict=True) if good}

    def _is_whole(self, name: str, record: FileRecord) -> bool:
        path, begin = self._store / name, header(self._identity.layout, *self._names[name])
        try:
            with path.open("rb") as file:
                if file.read(len(begin)) != begin:
                    return False
            return FileRecord(path.stat().st_size, file_crcs(SafetensorsFile(path))) == record
        except (KimiError, OSError):
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


def parse_journal(raw: bytes, where: str) -> tuple[dict[str, Any] | None, dict[str, FileRecord]]:
    """What the store is for, and its finished files; a torn last line does not count.

    Returns: None for what it is for if not even the first line is whole.
    Raises:
      StoreError: another line is damaged.
    """
    whole = raw.split(b"\n")[:-1]
    if not whole:
        return None, {}
    try:
        first, *entries = (parse_json(line.decode()) for line in whole)
        if not isinstance(first, dict):
            raise TypeError(f"expected an object in the first line, found {values.shown(first)}")
        return first, {e["file"]: FileRecord.from_json(e, where) for e in entries}
    except (ValueError, KeyError, TypeError) as e:
        raise StoreError(f"{where}: damaged: {e}") from None


def _line(name: str, record: FileRecord) -> str:
    return json.dumps({"file": name, **asdict(record)}) + "\n"


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
