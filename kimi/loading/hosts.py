"""Loading on several hosts at once: their progress added up, any failure stops all hosts.

The processes of `jax.distributed` share a table of strings; each writes there how far it is, and
what went wrong. Nothing is exchanged through devices, so a host that fails leaves nobody waiting.
JAX exports no access to the table: see `jax_private`.
"""

import itertools
import time
from typing import Any

import jax

from kimi.jax_private import private
from kimi.loading.errors import LoadError

_EVERY_SECONDS = 0.5
_FAREWELL_SECONDS = 10.0
_number = itertools.count()  # of this load: the same on all hosts, as all load in the same order


class Hosts:
    """All processes of this program.

    Args:
      table: of strings, shared by them: the client of `jax.distributed`; None if this is the only
        one.
      index, count: which of how many this is.
    """

    def __init__(self, table: Any, index: int, count: int):
        self._table, self._index, self._count = table, index, count
        self._prefix = f"kimi/load/{next(_number)}/"
        self._sent = 0.0

    @classmethod
    def all(cls) -> "Hosts":
        """Those of `jax.distributed`, or this process alone."""
        count = jax.process_count()
        table = None if count == 1 else private("distributed", "global_state").client
        return cls(table, jax.process_index(), count)

    def progress(self, done: int, total: int) -> tuple[int, int] | None:
        """Reports how far this host is. Returns bytes done and to do of all; None between messages.

        Raises:
          LoadError: another host has failed; with its message.
        """
        if self._table is None:
            return done, total
        now = time.monotonic()
        if now - self._sent < _EVERY_SECONDS:
            return None
        self._sent = now
        self._set("progress", f"{done} {total}")
        return _sums(self._read())

    def fail(self, error: BaseException) -> None:
        """Reports an error, and waits until the others know: the table ends with its process.

        If they cannot be reached, there is nothing to report: the original error propagates.
        """
        if self._table is None:
            return
        try:
            if isinstance(error, _OtherHostError):
                self._set("knows", "yes")
                return
            self._set("error", _line(error) or type(error).__name__)
            deadline = time.monotonic() + _FAREWELL_SECONDS
            while time.monotonic() < deadline:
                if self._all_have(self._pairs(), "knows/", "error/"):
                    return
                time.sleep(_EVERY_SECONDS / 10)
        except LoadError:
            pass

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
        self._set("progress", f"{total} {total}")
        self._set("done", "yes")
        while not self._all_have(pairs := self._read(), "done/"):
            time.sleep(_EVERY_SECONDS / 10)
        return _sums(pairs)

    def _all_have(self, pairs: dict[str, str], *keys: str) -> bool:
        return sum(key.startswith(keys) for key in pairs) == self._count

    def _set(self, key: str, value: str) -> None:
        self._call("key_value_set", f"{self._prefix}{key}/{self._index}", value, True)

    def _read(self) -> dict[str, str]:
        """What all hosts wrote. Raises LoadError if one of them failed."""
        pairs = self._pairs()
        for host in range(self._count):
            if f"error/{host}" in pairs:
                raise _OtherHostError(f"host {host}: {pairs[f'error/{host}']}")
        return pairs

    def _pairs(self) -> dict[str, str]:
        pairs = self._call("key_value_dir_get", self._prefix)
        return {key.removeprefix(self._prefix): value for key, value in pairs}

    def _call(self, method: str, *args: object) -> Any:
        try:
            return getattr(self._table, method)(*args)
        except RuntimeError as e:
            raise _OtherHostError(f"the other hosts cannot be reached: {_line(e)}") from None


def _sums(pairs: dict[str, str]) -> tuple[int, int]:
    counts = [value.split() for key, value in pairs.items() if key.startswith("progress/")]
    return sum(int(done) for done, _ in counts), sum(int(total) for _, total in counts)


class _OtherHostError(LoadError):
    """An error that did not happen here, and is not reported again."""


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
