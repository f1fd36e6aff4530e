"""Loading on several hosts at once: their progress added up, the error of one ending all.

The processes of `jax.distributed` share a table of strings; each writes there how far it is, and
what went wrong. Nothing is exchanged through devices, so a host that fails leaves nobody waiting.
JAX exports no access to the table: see `jax_private`.
"""

import itertools
import time
from typing import Protocol

import jax

from kimi.jax_private import private
from kimi.loading.errors import LoadError

_EVERY_SECONDS = 0.5
_FAREWELL_SECONDS = 10.0
_number = itertools.count()  # of this load: the same on all hosts, as all load in the same order


class Table(Protocol):
    """What is used of jax's client."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool) -> None:
        """Sets one string."""

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """All strings whose keys begin so."""


class Hosts:
    """All processes of this program.

    Args:
      table: shared by them; None if this is the only one.
      index, count: which of how many this is.
    """

    def __init__(self, table: Table | None, index: int, count: int):
        self._table, self._index, self._count = table, index, count
        self._prefix = f"kimi/load/{next(_number)}/"
        self._sent = 0.0

    @classmethod
    def all(cls) -> "Hosts":
        """Those of `jax.distributed`, or this process alone."""
        if jax.process_count() == 1:
            return cls(None, 0, 1)
        return cls(
            private("distributed", "global_state").client, jax.process_index(), jax.process_count()
        )

    def progress(self, done: int, total: int) -> tuple[int, int] | None:
        """Tells how far this host is. Returns bytes done and to do of all; None between messages.

        Raises:
          LoadError: another host has failed; with its message.
        """
        if self._table is None:
            return done, total
        now = time.monotonic()
        if now - self._sent < _EVERY_SECONDS:
            return None
        self._sent = now
        self._set(f"progress/{self._index}", f"{done} {total}")
        return _sums(self._read())

    def fail(self, error: BaseException) -> None:
        """Tells the others, and waits until they know: the table ends with its process."""
        if self._table is None:
            return
        try:
            if isinstance(error, _OtherHostError):
                self._set(f"knows/{self._index}", "yes")
                return
            reason = " ".join(str(error).split()) or type(error).__name__
            self._set(f"error/{self._index}", reason)
            deadline = time.monotonic() + _FAREWELL_SECONDS
            while time.monotonic() < deadline:
                found = self._pairs()
                if sum(key.startswith(("knows/", "error/")) for key in found) == self._count:
                    return
                time.sleep(_EVERY_SECONDS / 10)
        except LoadError:
            pass  # there is nobody left; the error itself goes its way

    def finish(self, total: int) -> tuple[int, int]:
        """Waits until all hosts have loaded everything.

        Args:
          total: bytes that this host has read.
        Returns: as `progress`.
        Raises:
          LoadError: a host has failed.
        """
        if self._table is None:
            return total, total
        self._set(f"progress/{self._index}", f"{total} {total}")
        self._set(f"done/{self._index}", "yes")
        while True:
            found = self._read()
            if sum(key.startswith("done/") for key in found) == self._count:
                return _sums(found)
            time.sleep(_EVERY_SECONDS / 10)

    def _set(self, key: str, value: str) -> None:
        assert self._table is not None
        try:
            self._table.key_value_set(self._prefix + key, value, True)
        except RuntimeError as e:
            raise _OtherHostError(f"the other hosts cannot be reached: {_line(e)}") from None

    def _read(self) -> dict[str, str]:
        """What all hosts wrote. Raises LoadError if one of them failed."""
        found = self._pairs()
        for host in range(self._count):
            if f"error/{host}" in found:
                raise _OtherHostError(f"host {host}: {found[f'error/{host}']}")
        return found

    def _pairs(self) -> dict[str, str]:
        assert self._table is not None
        try:
            pairs = self._table.key_value_dir_get(self._prefix)
        except RuntimeError as e:
            raise _OtherHostError(f"the other hosts cannot be reached: {_line(e)}") from None
        return {key.removeprefix(self._prefix): value for key, value in pairs}


def _sums(found: dict[str, str]) -> tuple[int, int]:
    pairs = [v.split() for k, v in found.items() if k.startswith("progress/")]
    return sum(int(p[0]) for p in pairs), sum(int(p[1]) for p in pairs)


class _OtherHostError(LoadError):
    """An error that did not happen here, and is not told again."""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
