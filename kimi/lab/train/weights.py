"""Weights as a flat dictionary, which rules by name need, and back into modules."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jax import Array
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from kimi.errors import InputError
from kimi.reference.loading import Tensors, export_tensors

Weights = dict[str, Array]
"""Dotted path in the module tree -> array; experts of a layer are stacked."""


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

    def initial(self) -> Weights:
        """The weights that `build` starts with, float32."""
        return weights_of(self._build())

    def merge(self, weights: Weights) -> M:
        """The module with these weights; cheap, and may be traced."""
        filled = [
            (path, param.replace(weights[name])) for name, (path, param) in self._params.items()
        ]
        return nnx.merge(self._graph, nnx.from_flat_state(filled))


def weights_of(model: nnx.Module) -> Weights:
    """The parameters of a module."""
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {_name(path): param[...] for path, param in state}


def is_matrix(name: str, w: Array) -> bool:
    """Whether weight decay applies: to matrices, not to convolutions, mixing vectors, scalars."""
    return w.ndim >= 2 and "conv1d" not in name and "_res.proj" not in name


def save_model(model: nnx.Module, path: Path, name: Callable[[tuple[Any, ...]], str]) -> None:
    """Writes all parameters as float32 under their checkpoint names (see `reference.loading`)."""
    write_tensors(path, dict(export_tensors(model, name)))


def write_tensors(path: Path, tensors: dict[str, NDArray[np.generic]]) -> None:
    """Writes a safetensors file, all of it or nothing."""
    part = path.with_suffix(".part")
    part.write_bytes(save(tensors, {"format": "pt"}))
    part.replace(path)


def read_tensors(path: Path) -> Tensors:
    """Reads what `write_tensors` wrote. Raises: InputError if it is missing or damaged."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: expected tensors of an earlier step: {error}") from None


def _name(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
