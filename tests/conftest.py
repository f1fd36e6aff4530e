"""Shared fixtures. Environment variables are set before anything imports jax."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"

from pathlib import Path

import pytest

import kimi  # noqa: F401  (settles the environment before jax is imported)
from kimi.session import Session, open_session

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def tiny() -> Session:
    """The small trained K3 with its drafter, float32."""
    return open_session()
