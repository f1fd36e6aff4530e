"""The evaluation scripts import each other as scripts do: from their own folder."""

import sys
from pathlib import Path

import pytest

import kimi
from kimi.api import Engine
from kimi.models import Model

ROOT = Path(kimi.__file__).parents[1]
sys.path.insert(0, str(ROOT / "eval"))


@pytest.fixture
def engine(tiny: Model, monkeypatch) -> Engine:
    """The small K3, instead of loading it anew in every run of a script."""
    from scoring import run

    made = Engine(tiny, "reference")
    monkeypatch.setattr(run, "open_engine", lambda args, draft: made)
    return made
