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
from kimi.reference.tensors import EXPERTS, Tensors


def is_matrix(name: str, w: Array) -> bool:
    """Whether weight decay applies: to matrices, not to convolutions, mixing vectors, scalars."""
    return w.ndim >= 2 and "conv1d" not in name and "_res.proj" not in name


def save_model(model: nnx.Module, path: Path, name: Callable[[tuple[Any, ...]], str]) -> None:
    """Writes all parameters of a `K3` or a `Dspark` as float32, experts split.

    Args:
      name: their checkpoint names: `tensor_name` or `draft_tensor_name`.
    """
    tensors: dict[str, NDArray[np.generic]] = {}
    for keys, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        full, value = name(keys), np.asarray(param[...], np.float32)
        if EXPERTS in full:
            stem, which = full.rsplit(".", 1)
            tensors |= {f"{stem}.{e}.{which}.weight": expert for e, expert in enumerate(value)}
        else:
            tensors[full] = value
    write_tensors(path, tensors)


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
