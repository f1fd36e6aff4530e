"""Shared fixtures. Environment variables are set before anything imports jax."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"

from pathlib import Path

# Programs compiled by one test process are read by the others and by the next run. A key says all
# that a program was made of: none can be stale.
os.environ["KIMI_CACHE_DIR"] = str(Path(__file__).parents[1] / ".cache")
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)

import pytest

import kimi  # noqa: F401  (settles the environment before jax is imported)
from kimi.models import LoadedModel, open_model
from kimi.program_cache import keep_programs

keep_programs()

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    """The small trained K3 with its drafter, float32."""
    return open_model()
