"""The folder of a store: where it may be made, and one writer at a time for each rank."""

import fcntl
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from kimi import values
from kimi.loading.errors import StoreError
from kimi.loading.manifest import MANIFEST, rank_folder

_LOCK = ".lock"  # behind the name of a rank's folder
_WAIT_SECONDS = 0.1  # a holder writes its name after it has the lock


def check_place(store: str | os.PathLike[str]) -> Path:
    """The folder as a path; it is there, or can be made without making others.

    Raises:
      InputError: no path.
      StoreError: it is a file, its parent is missing, or it would be made in `/`: there a wrong
        path is likelier than the wish.
    """
    path = Path(values.path("store", store))
    if os.path.isdir(path):
        return path
    if os.path.exists(path):
        raise StoreError(f"{path}: expected a folder, found a file")
    parent = path.absolute().parent
    if not os.path.isdir(parent):
        raise StoreError(f"{path}: cannot be made: expected the folder {parent}, found none")
    if parent.resolve() == Path("/"):
        raise StoreError(
            f"{path}: expected a folder, found none; it is not made in /: mkdir {path}"
        )
    return path


def make(store: Path, ranks: int) -> None:
    """Makes the folder of a store of so many ranks.

    Raises:
      StoreError: it holds other things.
      OSError: it cannot be made.
    """
    store.mkdir(exist_ok=True)
    names = {path.name for path in store.iterdir()}  # at one time: others may be writing
    if MANIFEST in names or any(store.glob(f"{rank_folder(None)}/*.safetensors")):
        return
    names -= {rank_folder(rank) + end for rank in range(ranks) for end in ("", _LOCK)}
    if names:
        raise StoreError(f"{store}: expected an empty folder, found {min(names)}")


@contextmanager
def held(store: Path, ranks: Iterable[int]) -> Iterator[None]:
    """Keeps other writers away from these ranks; a process that is killed lets go of them.

    Raises:
      StoreError: another writer has one of them; the message says who.
    """
    with ExitStack() as locks:
        for rank in ranks:
            path = store / (rank_folder(rank) + _LOCK)
            locks.enter_context(_locked(path))
            locks.callback(path.unlink, missing_ok=True)  # before its lock is released
        yield


def _locked(path: Path) -> TextIO:
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                now = time.strftime("%Y-%m-%d %H:%M:%S %z")
                file.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}")
                file.flush()
                return file
        except BlockingIOError:
            time.sleep(_WAIT_SECONDS)
            file.seek(0)
            holder = file.read() or "another process"
            file.close()
            raise StoreError(f"{path.parent}: is being written by {holder}") from None
        except OSError as e:
            file.close()
            raise OSError(e.errno, e.strerror, str(path)) from None
        file.close()  # its last holder has just removed it
