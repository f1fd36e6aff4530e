"""A model with a tenth of the shipped sizes, with random weights."""

from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.assets import TINY_K3
from kimi.lab.train import drafter, target
from kimi.lab.train.corpus import Prose
from kimi.lab.train.recipe import SMOKE
from kimi.lab.train.run import Run
from kimi.reference.loading import Template
from kimi.reference.numerics import FLOAT32
from kimi.reference.tensors import Weights
from kimi.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The shipped vocabulary."""
    return Tokenizer.from_dir(TINY_K3)


@pytest.fixture(scope="package", autouse=True)
def quick_compilation() -> Iterator[None]:
    """These tests run every program a few times: compiling is what takes their time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


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


def _random(model: Template, seed: int) -> Weights:
    """Weights of sensible sizes in which nothing is zero or one, so that everything takes part."""
    rng = np.random.default_rng(seed)

    def one(name: str, shape: tuple[int, ...]) -> jax.Array:
        noise = rng.standard_normal(shape)
        if len(shape) == 1:
            return jnp.asarray(0.1 * noise + name.endswith("norm.weight"), jnp.float32)
        return jnp.asarray(noise * shape[-1] ** -0.5, jnp.float32)

    shapes = jax.eval_shape(model.initial)
    return {name: one(name, x.shape) for name, x in shapes.items()}


@pytest.fixture(scope="session")
def fresh_weights(target_model: Template) -> Weights:
    """What training starts with."""
    return target_model.initial()


@pytest.fixture(scope="session")
def target_weights(target_model: Template) -> Weights:
    return _random(target_model, 1)


@pytest.fixture(scope="session")
def draft_model(run: Run) -> Template:
    return drafter.template(run.draft_config, FLOAT32)


@pytest.fixture(scope="session")
def draft_weights(draft_model: Template) -> Weights:
    return _random(draft_model, 2)
