"""A file of a store: what one rank holds of one piece, and what it says about itself.

Its header names the store, the rank and the piece, and has the CRC-32 of each tensor and one of all
of this. A file gets its name when it is complete and on disk, so one that is there is finished; one
whose header and data do not agree is damaged.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kimi.checkpoint import SafetensorsFile
from kimi.codecs.memory import scratch
from kimi.errors import CheckpointError
from kimi.kernels.layout import Layout
from kimi.loading.arrays import Segment, Words, Writer, dtype, flat_shape, segments
from kimi.loading.manifest import FORMAT, FileRecord, Identity, check_same, file_name, seal, unseal
from kimi.loading.reading import Files
from kimi.loading.workers import WorkerPool

CHUNK_BYTES = 16 << 20


@dataclass(frozen=True)
class Shard:
    """A file of a store.

    Attributes:
      identity: the store.
      rank, piece: what it holds.
    """

    identity: Identity
    rank: int
    piece: int

    @property
    def name(self) -> str:
        """Where it lies, below the store."""
        return file_name(self.identity.layout, self.rank, self.piece)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Its tensors, in order."""
        return segments(self.identity.layout, self.piece)

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return len(self.header()) + sum(segment.nbytes for segment in self.segments)

    def starts(self) -> Iterator[tuple[Segment, int]]:
        """Its tensors, and where in the file each begins."""
        start = len(self.header())
        for segment in self.segments:
            yield segment, start
            start += segment.nbytes

    def header(self, crc32: Mapping[str, str] | None = None) -> bytes:
        """The beginning of the file, up to its data; of the same length for all checksums."""
        metadata = {"format": FORMAT, **self.identity.short_fields()}
        metadata |= {"rank": str(self.rank), "piece": str(self.piece)}
        entries: dict[str, Any] = {}
        start = 0
        for segment in self.segments:
            name = segment.array
            metadata[f"crc32 {name}"] = (crc32 or {}).get(name, "0" * 8)
            entries[name] = {
                "dtype": "F32" if dtype(name) == np.float32 else "U32",
                "shape": list(segment.shape),
                "data_offsets": [start, start + segment.nbytes],
            }
            start += segment.nbytes
        entries = {"__metadata__": seal(metadata), **entries}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % 64)  # data begins aligned
        return len(text).to_bytes(8, "little") + text

    def record(self, path: Path) -> FileRecord | None:
        """What a file says about its tensors; None if it is missing or damaged.

        Raises:
          StoreError: it belongs to another store.
        """
        metadata = read_metadata(path)
        if metadata is None:
            return None
        check_same(str(path), self.identity.short_fields(), metadata)
        crc32 = {s.array: metadata.get(f"crc32 {s.array}", "") for s in self.segments}
        begin, nbytes = self.header(crc32), self.nbytes
        with path.open("rb") as file:
            whole = file.read(len(begin)) == begin and path.stat().st_size == nbytes
        return FileRecord(nbytes, crc32) if whole else None

    def read(self, path: Path, files: Files, writer: Writer, pool: WorkerPool) -> dict[str, str]:
        """Reads the data and writes it with `writer`; counts its bytes with `pool`.

        Returns: CRC-32 of each tensor, 8 hexadecimal digits.
        Raises:
          LoadError: the file cannot be read, or ends before.
        """
        checksums = {}
        for segment, at in self.starts():

            def name(at: int, array: str = segment.array) -> str:
                return array

            step = max(1, CHUNK_BYTES // (segment.nbytes // segment.rows))
            crc = 0
            for row in range(0, segment.rows, step):
                rows = min(step, segment.rows - row)
                with writer.chunk(self.rank, segment.array, segment.row + row, rows) as out:
                    raw = out.reshape(-1).view(np.uint8)
                    files.read(path, at, raw, name, pool.check)
                    crc = zlib.crc32(raw, crc)
                at += raw.size
                pool.add(raw.size)
            checksums[segment.array] = f"{crc:08x}"
        return checksums


class NullWriter:
    """A writer that keeps nothing."""

    def __init__(self, layout: Layout):
        self._layout = layout

    @contextmanager
    def chunk(self, rank: int, array: str, row: int, rows: int) -> Iterator[Words]:
        """Memory that the next chunk of this thread takes."""
        yield scratch("null", (rows, flat_shape(self._layout, array)[1]), np.uint32)


def read_metadata(path: Path) -> dict[str, str] | None:
    """What a file says about itself; None if it is missing or damaged."""
    try:
        return unseal(SafetensorsFile(path).metadata)
    except CheckpointError:
        return None
