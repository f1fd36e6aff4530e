"""Reads a store: sequential reads into the memory of ranks, every byte checked on the way."""

import functools
import os
import queue
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kimi import values
from kimi.checkpoint import SafetensorsFile
from kimi.loading.crew import Crew
from kimi.loading.errors import StoreError
from kimi.loading.manifest import MANIFEST, FileRecord, Manifest, check_same, file_names, header
from kimi.loading.reading import Files
from kimi.loading.sinks import Segment, Sink, rank_bytes, segments
from kimi.loading.stream import Limits, Progress, ranks_of

CHUNK_BYTES = 16 << 20


class Store:
    """A finished store.

    Attributes:
      path: the folder.
      layout: model, mesh and expert format that it is for.

    Raises:
      InputError: no path.
      StoreError: there is none, or its manifest is damaged or of another version.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(values.path("store", path))
        self._manifest = Manifest.read(self.path)
        self.layout = self._manifest.identity.layout

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether a folder is a finished store."""
        return (path / MANIFEST).exists()

    def require(self, expected: Mapping[str, Any]) -> None:
        """Raises StoreError naming the first of these fields of `Identity` that is another."""
        check_same(str(self.path), dict(expected), self._manifest.identity.fields())

    def nbytes(self, ranks: Iterable[int]) -> int:
        """Bytes that `read` reads for these ranks."""
        return rank_bytes(self.layout) * len(ranks_of(self.layout, ranks))

    def read(self, ranks: Iterable[int], sink: Sink, limits: Limits, progress: Progress) -> None:
        """Writes all that `ranks` hold into `sink`, as `stream` does.

        Raises:
          InputError: there is no such rank.
          StoreError: a file is missing, or is not what was written.
          LoadError: a file cannot be read.
        """
        own = ranks_of(self.layout, ranks)
        names = {n: place for n, place in file_names(self.layout).items() if place[0] in own}

        def place(name: str, one: _OneFile) -> None:
            rank, piece = names[name]
            for segment in segments(self.layout, piece):
                with one.checked(segment):
                    for row, rows in one.steps(segment):
                        with sink.chunk(rank, segment.array, segment.row + row, rows) as out:
                            one.read(out.reshape(-1).view(np.uint8))

        self._each(names, place, limits, progress)

    def verify(self, limits: Limits, progress: Progress) -> None:
        """Reads everything. Raises as `read`."""

        def discard(name: str, one: _OneFile) -> None:
            spare = np.empty(0, np.uint8)
            for segment in segments(self.layout, names[name][1]):
                with one.checked(segment):
                    for _, rows in one.steps(segment):
                        size = segment.nbytes // segment.rows * rows
                        if spare.size < size:
                            spare = np.empty(size, np.uint8)
                        one.read(spare[:size])

        names = file_names(self.layout)
        self._each(names, discard, limits, progress)

    def _each(
        self, names: Mapping[str, tuple[int, int]], work: "Callable[[str, _OneFile], None]",
        limits: Limits, progress: Progress,
    ) -> None:  # fmt: skip
        """Calls `work` for all files, several at a time."""
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in names:
            self._check_size(name)
            waiting.put(name)
        crew, done = Crew(), [0]

        def count(size: int) -> None:
            with crew.changed:
                done[0] += size

        with Files() as files:

            def run() -> None:
                while not waiting.empty():
                    try:
                        name = waiting.get_nowait()
                    except queue.Empty:
                        return
                    crew.check()
                    begin = header(self.layout, *names[name])
                    record = self._manifest.files[name]
                    work(name, _OneFile(self.path / name, files, crew, count, begin, record))

            crew.start(run, max(limits.readers, limits.workers))
            crew.wait(lambda: progress(done[0]))
            progress(done[0])

    def _check_size(self, name: str) -> None:
        """Missing and truncated files are told before anything is read."""
        path, expected = self.path / name, self._manifest.files[name].nbytes
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise StoreError(f"{path}: no such file") from None
        if size != expected:
            kind = "truncated: " if size < expected else ""
            raise StoreError(f"{path}: {kind}expected {expected} bytes, found {size}")


class _OneFile:
    """A file that is read from its beginning to its end.

    Raises:
      StoreError: its header is not the one that was written.
    """

    def __init__(
        self, path: Path, files: Files, crew: Crew, count: Callable[[int], None], begin: bytes,
        record: FileRecord,
    ):  # fmt: skip
        self._path, self._files, self._crew, self._count = path, files, crew, count
        self._record, self._at, self._array, self._crc = record, 0, "header", 0
        found = np.empty(len(begin), np.uint8)
        self._fill(found)
        if found.tobytes() != begin:
            raise StoreError(
                f"{path}: header: expected {begin[8:].decode().strip()}, found another"
            )

    def steps(self, segment: Segment) -> Iterator[tuple[int, int]]:
        """First row and number of rows of each chunk of a segment."""
        step = max(1, CHUNK_BYTES // (segment.nbytes // segment.rows))
        for row in range(0, segment.rows, step):
            yield row, min(step, segment.rows - row)

    @contextmanager
    def checked(self, segment: Segment) -> Iterator[None]:
        """Compares the checksum of what is read meanwhile. Raises StoreError."""
        self._array, self._crc = segment.array, 0
        yield
        expected, found = self._record.crc32.get(segment.array), f"{self._crc:08x}"
        if found != expected:
            raise StoreError(
                f"{self._path}: {segment.array}: expected CRC-32 {expected}, found {found}: the "
                "file is damaged"
            )

    def read(self, target: npt.NDArray[np.uint8]) -> None:
        """Fills `target` with what comes next."""
        self._fill(target)
        self._crc = zlib.crc32(target, self._crc)
        self._count(len(target))

    def _fill(self, target: npt.NDArray[np.uint8]) -> None:
        name = functools.partial(_constant, self._array)
        self._files.read(self._path, self._at, target, name, self._crew.check)
        self._at += len(target)


def file_crcs(file: SafetensorsFile) -> dict[str, str]:
    """CRC-32 of every tensor, read from the file. Raises LoadError."""
    found = {}
    with Files() as files:
        spare = np.empty(CHUNK_BYTES, np.uint8)
        for name, info in file.tensors.items():
            own = functools.partial(_constant, name)
            crc, offset = 0, file.offset(name)
            for start in range(0, info.nbytes, CHUNK_BYTES):
                raw = spare[: min(CHUNK_BYTES, info.nbytes - start)]
                files.read(file.path, offset + start, raw, own, lambda: None)
                crc = zlib.crc32(raw, crc)
            found[name] = f"{crc:08x}"
    return found


def _constant(name: str, at: int) -> str:
    return name
