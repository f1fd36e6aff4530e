"""The reference modules: without weights, and from checkpoint tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from kimi.config import DraftConfig, ModelConfig
from kimi.reference.draft import Dspark
from kimi.reference.model import K3
from kimi.reference.numerics import FLOAT32, Precision
from kimi.reference.tensors import Shapes, Tensors, Weights, read_drafter, read_target


class Template[M: nnx.Module]:
    """A module tree without its weights.

    Args:
      build: makes the module; its weights are never computed here.
    """

    def __init__(self, build: Callable[[], M]):
        self._graph, state = nnx.split(nnx.eval_shape(build))
        self._params: dict[str, tuple[tuple[Any, ...], Any]] = {
            _name(path): (path, param) for path, param in nnx.to_flat_state(state)
        }
        self._build = build

    @property
    def shapes(self) -> Shapes:
        """Of all parameters."""
        return {name: param.shape for name, (_, param) in self._params.items()}

    def initial(self) -> Weights:
        """The weights that `build` starts with, float32."""
        return weights_of(self._build())

    def merge(self, weights: Mapping[str, Array]) -> M:
        """The module with these weights; cheap, and may be traced."""
        state = [(path, param.replace(weights[n])) for n, (path, param) in self._params.items()]
        return nnx.merge(self._graph, nnx.from_flat_state(state))


def weights_of(model: nnx.Module) -> Weights:
    """The parameters of a module."""
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {_name(path): param[...] for path, param in state}


def take_apart(
    model: nnx.Module,
) -> tuple[tuple[Array, ...], Callable[[tuple[Array, ...]], Any]]:
    """A module's weights, and what puts such weights together again."""
    graph, state = nnx.split(model)
    leaves, tree = jax.tree.flatten(state)
    return tuple(leaves), lambda weights: nnx.merge(graph, jax.tree.unflatten(tree, weights))


def target_template(config: ModelConfig, precision: Precision) -> Template[K3]:
    """The target without weights."""
    return Template(lambda: K3(config, precision, nnx.Rngs(0)))


def drafter_template(config: DraftConfig, precision: Precision) -> Template[Dspark]:
    """The drafter without weights."""
    return Template(lambda: Dspark(config, precision, nnx.Rngs(0)))


def load_model(tensors: Tensors, config: ModelConfig, precision: Precision = FLOAT32) -> K3:
    """Builds the target from checkpoint tensors; see `tensors.read_target`.

    Args:
      config: of the same checkpoint.
      precision: float32 widens every weight.
    """
    template = target_template(config, precision)
    return template.merge(read_target(tensors, template.shapes, precision.matmul == jnp.float32))


def load_drafter(
    tensors: Tensors,
    config: DraftConfig,
    precision: Precision = FLOAT32,
    target: Tensors | None = None,
) -> Dspark:
    """Builds the drafter; see `load_model` and `tensors.read_drafter`."""
    template = drafter_template(config, precision)
    wide = precision.matmul == jnp.float32
    return template.merge(read_drafter(tensors, template.shapes, wide, target))


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
