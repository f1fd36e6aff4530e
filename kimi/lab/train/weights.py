"""Rules about weights by their names, and files of them."""

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
from kimi.reference.loading import export_tensors
from kimi.reference.tensors import Tensors


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
