"""Errors of loading."""

from kimi.errors import KimiError


class LoadError(KimiError):
    """A file that cannot be read any more, a memory bound that is too small, a host that failed."""


class StoreError(KimiError):
    """A pre-sharded store that is broken, unfinished, or made for something else."""


class DamagedError(StoreError):
    """A manifest that is not what was written."""
