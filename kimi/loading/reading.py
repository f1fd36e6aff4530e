"""Reading files into memory at given places, with the file and the tensor named if it fails.

Long reads go past the system's cache (O_DIRECT) where the file system allows it and can say what is
cached: a checkpoint may not fit there, and filling it costs the processor ten times what reading
into our own memory does. What is cached already comes from the cache. So local disks are read;
network file systems, which cannot say, are read as ever. Of 4 GB in 1 GB files here, 8 MB at a
time, on two cores that others used as well:

    through the cache, 1 thread (4)     0.6 GB/s (1.4)    1.5 CPU-seconds a GB (0.4)
    past it, 1 thread (4)               2.1 GB/s (2.0)    0.02 (0.01)
    from the cache                      5 GB/s            0.2
"""

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from kimi.checkpoint.files import DTYPES
from kimi.codecs.memory import scratch
from kimi.kernels.words import U8
from kimi.loading.errors import LoadError
from kimi.loading.plan import PAGE_BYTES, Extent, Item

_Check = Callable[[], None]
READ_BYTES = 8 << 20  # of one system call: large for network file systems, short enough to stop
_LEAST_DIRECT_BYTES = 1 << 20
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)


class _File:
    """A file, open in several ways."""

    def __init__(self, path: Path):
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._descriptors: list[int] = []
        self.plain = self._open(path, flags)
        os.posix_fadvise(self.plain, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        self.direct = self._probe = None
        if not _O_DIRECT or not _NO_WAIT:
            return
        try:
            self.direct = self._open(path, flags | _O_DIRECT)
        except OSError:
            return  # this file system has no such thing
        self._probe = self._open(path, flags)
        # Asking for a byte that is not cached then makes the system read a page, not megabytes.
        os.posix_fadvise(self._probe, 0, 0, os.POSIX_FADV_RANDOM)

    def _open(self, path: Path, flags: int) -> int:
        self._descriptors.append(os.open(path, flags))
        return self._descriptors[-1]

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def is_cached(self, offset: int, size: int) -> bool:
        """Whether these bytes seem to be in the system's cache: one of them, whichever, is."""
        assert self._probe is not None
        at = offset + random.randrange(size)  # no byte that an earlier question may have brought in
        try:
            return os.preadv(self._probe, [bytearray(1)], at, _NO_WAIT) == 1
        except BlockingIOError:
            return False
        except OSError:
            return True  # it cannot say so; or it cannot be read, as the next read will report

    def read(self, target: U8, at: int, direct: bool) -> int:
        """Reads some bytes of `target`; returns how many. Raises OSError."""
        if direct and self.direct is not None:
            try:
                return _read_pages(self.direct, target, at)
            except OSError as e:
                if e.errno != errno.EINVAL:
                    raise
                self.direct = None  # larger pages, or a file system that changes its mind
        return os.preadv(self.plain, [target], at)


def _read_pages(descriptor: int, target: U8, at: int) -> int:
    """Reads whole pages into `target`; those that it takes a part of go to pages aside."""
    before, size = at % PAGE_BYTES, len(target)
    edges = scratch("edges", (2, PAGE_BYTES), np.uint8)
    first = min(-at % PAGE_BYTES, size)
    last = (size - first) % PAGE_BYTES
    middle = target[first : size - last]
    aligned = middle
    if middle.ctypes.data % PAGE_BYTES:
        aligned = scratch("pages", (READ_BYTES,), np.uint8)[: len(middle)]
    parts = [edges[0]] * (first > 0) + [aligned] * (len(aligned) > 0) + [edges[1]] * (last > 0)
    count = max(0, min(os.preadv(descriptor, parts, at - before) - before, size))
    target[: min(first, count)] = edges[0, before : before + min(first, count)]
    if aligned is not middle:
        middle[...] = aligned
    if count > size - last:
        target[size - last : count] = edges[1, : count - (size - last)]
    return count


class Files:
    """Files open for reading; any number of threads may read at once."""

    def __init__(self) -> None:
        self._opened: dict[Path, _File] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        while self._opened:
            self._opened.popitem()[1].close()

    def read(
        self, path: Path, offset: int, target: U8, name: Callable[[int], str], check: _Check
    ) -> None:
        """Fills `target` from `offset` on.

        Args:
          target: [n] uint8, contiguous; fastest if its place in memory is as far behind a page of
            `PAGE_BYTES` as `offset` is in the file.
          name: what lies at a byte of the file, for messages.
          check: called between system calls; may raise.
        Raises:
          LoadError: the file cannot be read, or ends before.
        """
        file = self._open(path, name(offset))
        direct = (
            len(target) >= _LEAST_DIRECT_BYTES
            and file.direct is not None
            and not file.is_cached(offset, len(target))
        )
        done = 0
        while done < len(target):
            check()
            at = offset + done
            part = target[done : done + READ_BYTES - at % PAGE_BYTES]
            try:
                count = file.read(part, at, direct)
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

    def _open(self, path: Path, name: str) -> _File:
        with self._lock:
            if path not in self._opened:
                try:
                    self._opened[path] = _File(path)
                except OSError as e:
                    raise LoadError(f"{path}: {name}: cannot be opened: {e.strerror}") from None
            return self._opened[path]


def read_item(files: Files, item: Item, memory: U8, check: _Check) -> None:
    """Reads an item into `memory`, at its offsets. Raises LoadError."""
    for run in item.runs:
        extents = item.extents[run[0] : run[-1] + 1]

        def name(at: int, extents: tuple[Extent, ...] = extents) -> str:
            return next((e.stored for e in extents if at < e.offset + e.nbytes), extents[-1].stored)

        target = memory[item.offsets[run[0]] : item.offsets[run[-1]] + extents[-1].nbytes]
        files.read(extents[0].path, extents[0].offset, target, name, check)


def extent_array(item: Item, index: int, memory: U8) -> npt.NDArray[np.generic]:
    """An extent that was read: a view of `memory` in the stored dtype."""
    extent, start = item.extents[index], item.offsets[index]
    raw = memory[start : start + extent.nbytes]
    return raw.view(DTYPES[extent.info.dtype]).reshape(extent.shape)
