"""Reads a store: sequential reads into the memory of ranks, every byte checked on the way."""

import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kimi import values
from kimi.loading.arrays import Writer, rank_bytes
from kimi.loading.errors import StoreError
from kimi.loading.manifest import Manifest, check_same, file_names
from kimi.loading.reading import Files
from kimi.loading.shard import NullWriter, Shard
from kimi.loading.stream import Limits, ranks_of
from kimi.loading.workers import Progress, WorkerPool


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

    def require(self, expected: Mapping[str, Any]) -> None:
        """Raises StoreError naming the first of these fields of `Identity` that is another."""
        check_same(str(self.path), dict(expected), self._manifest.identity.fields())

    def nbytes(self, ranks: Iterable[int]) -> int:
        """Bytes that `read` reads for these ranks."""
        return rank_bytes(self.layout) * len(ranks_of(self.layout, ranks))

    def read(
        self, ranks: Iterable[int], writer: Writer, limits: Limits, progress: Progress
    ) -> None:
        """Writes all that `ranks` hold with `writer`, as `stream` does.

        Raises:
          InputError: there is no such rank.
          StoreError: a file is missing, or is not what was written.
          LoadError: a file cannot be read.
        """
        wanted = ranks_of(self.layout, ranks)
        shards = [
            Shard(self._manifest.identity, rank, piece)
            for rank, piece in file_names(self.layout).values()
            if rank in wanted
        ]
        for shard in shards:
            self._check_size(shard)
        pool = WorkerPool()
        with Files() as files:
            read = functools.partial(self._read_one, files, writer, pool)
            pool.run(shards, read, max(limits.readers, limits.workers), progress)

    def verify(self, limits: Limits, progress: Progress) -> None:
        """Reads everything. Raises as `read`."""
        self.read(range(self.layout.mesh.ranks), NullWriter(self.layout), limits, progress)

    def _read_one(self, files: Files, writer: Writer, pool: WorkerPool, shard: Shard) -> None:
        path, expected = self.path / shard.name, self._manifest.files[shard.name].crc32
        begin = shard.header(expected)
        header = np.empty(len(begin), np.uint8)
        files.read(path, 0, header, lambda at: "header", pool.check)
        if header.tobytes() != begin:
            raise StoreError(
                f"{path}: header: expected that of rank {shard.rank}, piece {shard.piece} of this "
                "store, found another: the file is damaged"
            )
        for array, crc32 in shard.read(path, files, writer, pool).items():
            if crc32 != expected[array]:
                raise StoreError(
                    f"{path}: {array}: expected CRC-32 {expected[array]}, found {crc32}: the file "
                    "is damaged"
                )

    def _check_size(self, shard: Shard) -> None:
        """Missing and truncated files are reported before anything is read."""
        path, expected = self.path / shard.name, shard.nbytes
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise StoreError(f"{path}: no such file") from None
        if size != expected:
            kind = "truncated: " if size < expected else ""
            raise StoreError(f"{path}: {kind}expected {expected} bytes, found {size}")
