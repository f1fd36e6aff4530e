"""The reference modules without their weights, and their weights without the modules."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx
from jax import Array

from kimi.config import DraftConfig, ModelConfig
from kimi.reference.draft import Dspark
from kimi.reference.model import K3
from kimi.reference.numerics import Precision
from kimi.reference.tensors import Shapes, Weights


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


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
