"""Compiled programs kept between runs, in the user's cache folder.

jax asks for a program and hands over a new one; where they are kept is decided here. The store that
comes with jax is not used: an entry that a full disk or Ctrl-C cut short stays in it, and is
complained about at every run. This one takes no lock: an entry appears whole, under its last name,
carries a digest, and is removed when that is wrong.
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


class _Asking(threading.local):
    passed_by = False


_asking = _Asking()


class Store:
    """A folder of programs, the least recently used of which go when it is opened too full.

    What jax uses of its own store. Any number of processes may use it at once. What cannot be read
    is not there, and what cannot be written is not kept; neither is an error.

    Args:
      folder: made if it is missing.

    Raises:
      OSError: it cannot be made, listed or written.
    """

    def __init__(self, folder: Path):
        self.folder = self._path = folder  # jax logs the latter
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        self._evict()

    def get(self, key: str) -> bytes | None:
        """The program called `key`, or None."""
        path = self.folder / key
        if _asking.passed_by:
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
        """Keeps a program; a process killed meanwhile leaves a file that ages and goes."""
        if _asking.passed_by:
            return
        with suppress(OSError):
            handle, name = tempfile.mkstemp(dir=self.folder)
            try:
                with open(handle, "wb") as file:
                    file.write(hashlib.sha256(value).digest() + value)
                os.replace(name, self.folder / key)
            finally:
                with suppress(OSError):
                    os.unlink(name)  # there no longer, if all went well

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
def passed_by() -> Iterator[None]:
    """In this thread all stores are empty and keep nothing: what jax compiles is new."""
    _asking.passed_by = True
    try:
        yield
    finally:
        _asking.passed_by = False


def keep_programs() -> Store | None:
    """Lets this process read and write compiled programs in `startup.cache_folder()`.

    Returns: the store, which may keep other things too, or None without one.

    Where jax has been given a folder of its own, that one stays in use, in jax's way. Without a
    folder that can be written every run compiles; only one that was named is worth a warning.
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
    private("compilation_cache").get_file_cache = lambda path: (store, path)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
    return store


def _machine() -> str:
    """Names what programs for CPUs depend on and jax's keys leave out: kind and number of cores.

    A home may be shared by machines: a program made for another one may not run here.
    """
    facts: list[Any] = [platform.machine(), os.cpu_count()]
    if hasattr(os, "sched_getaffinity"):
        facts.append(len(os.sched_getaffinity(0)))
    with suppress(OSError), open("/proc/cpuinfo") as file:
        facts += filter(_CPU_FACTS.match, itertools.takewhile(str.strip, file))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
