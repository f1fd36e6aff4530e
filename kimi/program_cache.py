"""A persistent cache of compiled programs in the user's cache folder.

It replaces jax's own, which keeps an entry that a full disk or Ctrl-C truncated and warns about it
at every run. This one takes no lock: entries are renamed into place when complete, carry a digest,
and are removed if it is wrong.
"""

import hashlib
import itertools
import os
import platform
import re
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax

from kimi.jax_private import private
from kimi.startup import CACHE_DIR, cache_folder

MAX_BYTES = 1 << 30
_LEAST_SECONDS = 0.05  # of compiling: below, a program is not worth a file
_DIGEST_BYTES = hashlib.sha256().digest_size
_CPU_FACTS = re.compile(r"(vendor_id|cpu family|model|stepping|flags|Features|CPU .*)\s*:")


class _Thread(threading.local):
    bypassed = False


_thread = _Thread()


class Store:
    """A folder of programs, with the interface that jax expects of a cache.

    Opening it evicts the least recently used programs above `MAX_BYTES`. Processes may share it.
    Entries that cannot be read count as absent, and those that cannot be written are not kept;
    neither is an error.

    Args:
      folder: created if it is missing.

    Raises:
      OSError: it cannot be created, listed or written.
    """

    def __init__(self, folder: Path):
        self.folder = self._path = folder  # jax logs the latter
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        self._evict()

    def get(self, key: str) -> bytes | None:
        """The program called `key`, or None."""
        path = self.folder / key
        if _thread.bypassed:
            return None
        with suppress(OSError):
            entry = path.read_bytes()
            digest, program = entry[:_DIGEST_BYTES], entry[_DIGEST_BYTES:]
            if hashlib.sha256(program).digest() == digest:
                os.utime(path)
                return program
            path.unlink()
        return None

    def put(self, key: str, value: bytes) -> None:
        """Keeps a program. If the process is killed here, its temporary file is evicted later."""
        if _thread.bypassed:
            return
        with suppress(OSError):
            handle, name = tempfile.mkstemp(dir=self.folder)
            try:
                with open(handle, "wb") as file:
                    file.write(hashlib.sha256(value).digest() + value)
                os.replace(name, self.folder / key)
            finally:
                with suppress(OSError):
                    os.unlink(name)  # unless it was renamed

    def _evict(self) -> None:
        files = []
        for entry in os.scandir(self.folder):
            with suppress(FileNotFoundError):  # another process evicts too
                status = entry.stat()
                files.append((status.st_mtime, status.st_size, Path(entry.path)))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= MAX_BYTES:
                break
            path.unlink(missing_ok=True)
            total -= size


_store: Store | None = None


@contextmanager
def bypassed() -> Iterator[None]:
    """In this thread all stores are empty and keep nothing, so that jax compiles anew."""
    _thread.bypassed = True
    try:
        yield
    finally:
        _thread.bypassed = False


def keep_programs() -> Store | None:
    """Lets this process read and write compiled programs in `startup.cache_folder()`.

    Returns: the store, which may keep other things too; None if there is none.

    If jax has been configured with a cache folder, jax's own cache stays in use. If the folder
    cannot be written every run compiles, with a warning if the user has named that folder.
    """
    global _store
    if given := jax.config.jax_compilation_cache_dir:
        return _store if _store is not None and given == str(_store.folder) else None
    base = cache_folder()
    if base is None:
        return None
    folder = base / f"programs-{_machine()}"
    try:
        store = _store = Store(folder)
    except OSError as error:
        if CACHE_DIR in os.environ:
            warnings.warn(
                f"{CACHE_DIR}: expected a folder that can be written, found {str(base)!r} "
                f"({error.strerror}): compiled programs are not kept",
                stacklevel=2,
            )
        return None
    private("compilation_cache", "get_file_cache")  # checks that there is something to replace
    private("compilation_cache").get_file_cache = lambda path: (store, path)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
    return store


def _machine() -> str:
    """A digest of the kind and number of CPU cores, which jax's keys leave out.

    Machines may share a home folder, and a program compiled on one may not run on another.
    """
    facts: list[Any] = [platform.machine(), os.cpu_count()]
    if hasattr(os, "sched_getaffinity"):
        facts.append(len(os.sched_getaffinity(0)))
    with suppress(OSError), open("/proc/cpuinfo") as file:
        facts += filter(_CPU_FACTS.match, itertools.takewhile(str.strip, file))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
