"""Rules about weights by their names, files of them, and models from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from kimi.config import DraftConfig, ModelConfig
from kimi.errors import InputError
from kimi.reference.draft import Dspark
from kimi.reference.loading import drafter_template, target_template
from kimi.reference.model import K3
from kimi.reference.numerics import FLOAT32, Precision
from kimi.reference.tensors import EXPERTS, Tensors, read_drafter, read_target


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


def load_model(tensors: Tensors, config: ModelConfig, precision: Precision = FLOAT32) -> K3:
    """Builds the target from checkpoint tensors; see `reference.tensors.read_target`.

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
    """Builds the drafter; see `load_model` and `reference.tensors.read_drafter`."""
    template = drafter_template(config, precision)
    wide = precision.matmul == jnp.float32
    return template.merge(read_drafter(tensors, template.shapes, wide, target))
