"""Access to private parts of jax, in this module only."""

import importlib
from typing import Any

import jax

from kimi.errors import KimiError


def private(module: str, name: str = "") -> Any:
    """`name` of `jax._src.<module>`, or the module. Raises KimiError if jax has moved it."""
    try:
        loaded = importlib.import_module(f"jax._src.{module}")
        return getattr(loaded, name) if name else loaded
    except (ImportError, AttributeError):
        expected = f"jax._src.{module}" + (f".{name}" if name else "")
        raise KimiError(
            f"jax {jax.__version__}: expected {expected}, found none: install the release that "
            "requirements.lock names"
        ) from None
