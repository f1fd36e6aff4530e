"""Low-latency decoding of Kimi K3 in JAX and Pallas.

    import kimi
    engine = kimi.load()
    for text in engine.generate("Tom has 3 apples and buys 4 more. How many has he?"):
        print(text, end="")

See `kimi.api` for everything that `load` and its result can do.
"""

from typing import TYPE_CHECKING, Any

from kimi._version import __version__
from kimi.startup import prepare_environment

prepare_environment()  # must come before any module of this package imports jax

if TYPE_CHECKING:
    from kimi import api
    from kimi.answer import Answer
    from kimi.api import Engine, load
    from kimi.conversation import Chat
    from kimi.decoding.sampling import Sampling
    from kimi.decoding.schedule import Adaptive, CostTable, Fixed

__all__ = [
    "Adaptive",
    "Answer",
    "Chat",
    "CostTable",
    "Engine",
    "Fixed",
    "Sampling",
    "__version__",
    "api",
    "load",
]


def __getattr__(name: str) -> Any:
    """Imports the API on first use: importing jax takes seconds."""
    if name in __all__:
        from importlib import import_module

        api = import_module("kimi.api")
        return api if name == "api" else getattr(api, name)
    raise AttributeError(f"module 'kimi' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names for completion, before the API has been imported."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
