"""Reading files into memory at given places, with the file and the tensor named if it fails."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from kimi.checkpoint.files import DTYPES
from kimi.loading.errors import LoadError
from kimi.loading.plan import Extent, Item

U8 = npt.NDArray[np.uint8]
READ_BYTES = 8 << 20  # of one system call: large for network file systems, short enough to stop


class Files:
    """Files open for reading; any number of threads may read at once."""

    def __init__(self) -> None:
        self._opened: dict[Path, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for descriptor in self._opened.values():
            os.close(descriptor)
        self._opened.clear()

    def read(
        self, path: Path, offset: int, target: memoryview, name: Callable[[int], str],
        check: Callable[[], None],
    ) -> None:  # fmt: skip
        """Fills `target` from `offset` on.

        Args:
          name: what lies at a byte of the file, for messages.
          check: called between system calls; may raise.
        Raises:
          LoadError: the file cannot be read, or ends before.
        """
        descriptor = self._open(path, name(offset))
        done = 0
        while done < len(target):
            check()
            at = offset + done
            try:
                count = os.preadv(descriptor, [target[done : done + READ_BYTES]], at)
            except OSError as e:
                raise LoadError(
                    f"{path}: {name(at)}: cannot be read at byte {at}: {e.strerror}"
                ) from None
            if count == 0:
                raise LoadError(
                    f"{path}: {name(at)}: expected {offset + len(target)} bytes or more, found the "
                    f"end of the file at byte {at}"
                )
            done += count

    def _open(self, path: Path, name: str) -> int:
        with self._lock:
            if path not in self._opened:
                try:
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as e:
                    raise LoadError(f"{path}: {name}: cannot be opened: {e.strerror}") from None
                self._opened[path] = descriptor
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            return self._opened[path]


def read_item(files: Files, item: Item, memory: U8, check: Callable[[], None]) -> None:
    """Reads an item to its places in `memory`. Raises LoadError."""
    places = item.places
    for run in item.runs:
        first, last = item.extents[run[0]], item.extents[run[-1]]
        own = [item.extents[i] for i in run]

        def name(at: int, own: list[Extent] = own) -> str:
            return next((e.stored for e in own if at < e.offset + e.nbytes), own[-1].stored)

        end = places[run[-1]] + last.nbytes
        files.read(first.path, first.offset, memory[places[run[0]] : end].data, name, check)


def extent_array(item: Item, index: int, memory: U8) -> npt.NDArray[np.generic]:
    """An extent that was read: a view of `memory` in the stored dtype."""
    extent, start = item.extents[index], item.places[index]
    raw = memory[start : start + extent.nbytes]
    return raw.view(DTYPES[extent.info.dtype]).reshape(extent.shape)
