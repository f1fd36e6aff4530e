"""Low-latency decoding of Kimi K3 in JAX and Pallas."""

from kimi._version import __version__
from kimi.startup import prepare_environment

prepare_environment()  # must come before any module of this package imports jax

__all__ = ["__version__"]
