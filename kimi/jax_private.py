"""The one place that knows what jax keeps to itself and this library needs."""

import importlib
from typing import Any

import jax

from kimi.errors import KimiError


def private(module: str, name: str = "") -> Any:
    """`name` of `jax._src.<module>`, or the module. Raises KimiError if jax has moved it."""
    try:
        found = importlib.import_module(f"jax._src.{module}")
        return getattr(found, name) if name else found
    except (ImportError, AttributeError):
        place = f"jax._src.{module}" + (f".{name}" if name else "")
        raise KimiError(
            f"jax {jax.__version__}: expected {place}, found none: install the release that "
            "requirements.lock names"
        ) from None
