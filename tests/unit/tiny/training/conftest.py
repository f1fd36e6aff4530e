"""A model with a tenth of the shipped sizes, with random weights."""

from pathlib import Path

import jax
import numpy as np
import pytest

from kimi.reference.numerics import FLOAT32
from kimi.tiny.corpus import Prose
from kimi.tiny.training import drafter, target
from kimi.tiny.training.recipe import SMOKE
from kimi.tiny.training.run import Run
from kimi.tiny.training.weights import Template, Weights


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose prose is random ids."""
    folder: Path = tmp_path_factory.mktemp("run")
    ids = np.random.default_rng(0).integers(0, 1792, 4000).astype(np.uint16)
    Prose(ids, ids[::-1].copy()).save(folder / "prose.npz")
    return Run(folder, folder, SMOKE)


@pytest.fixture(scope="session")
def target_model(run: Run) -> Template:
    return target.template(run.config, FLOAT32)


def _shaken(weights: Weights) -> Weights:
    """Adds noise, so that what starts as zeros or ones takes part."""
    keys = jax.random.split(jax.random.key(7), len(weights))
    return {
        name: w + 0.1 * jax.random.normal(key, w.shape)
        for key, (name, w) in zip(keys, weights.items(), strict=True)
    }


@pytest.fixture(scope="session")
def target_weights(target_model: Template) -> Weights:
    return _shaken(target_model.initial())


@pytest.fixture(scope="session")
def draft_model(run: Run) -> Template:
    return drafter.template(run.draft_config, FLOAT32)


@pytest.fixture(scope="session")
def draft_weights(draft_model: Template) -> Weights:
    return _shaken(draft_model.initial())
