"""Weights of the reference from checkpoint tensors, by the names and shapes of its parameters.

Parameters are named after tensors, so one small rule (`tensor_name`) maps each to its tensor. Only
routed experts differ: on disk one tensor per expert, maybe MXFP4; here stacked. The modules, and
flax with them, are not needed here: see `loading`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import Array

from kimi.codecs import mxfp4
from kimi.config.model import TARGET_PREFIX
from kimi.errors import CheckpointError

Tensors = Mapping[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]
"""Dotted path of a parameter in the module tree -> shape."""
Weights = dict[str, Array]
"""Dotted path of a parameter in the module tree -> array."""

EXPERTS = ".experts."


def tensor_name(path: tuple[Any, ...]) -> str:
    """The checkpoint's name of a target parameter, given its path in the module tree."""
    name = ".".join(map(str, path))
    name = name.replace("_res.norm.", "_res_norm.").replace("_res.proj", "_res_proj.weight")
    return TARGET_PREFIX + (name if name.startswith("lm_head.") else "model." + name)


def draft_tensor_name(path: tuple[Any, ...]) -> str:
    """The checkpoint's name of a drafter parameter: the path itself."""
    return ".".join(map(str, path))


def read_target(tensors: Tensors, shapes: Shapes, widen: bool) -> Weights:
    """The target's weights.

    Args:
      tensors: name -> array in the stored dtype and the model's shape: a `checkpoint.Checkpoint`,
        which also refuses NaN, or the like.
      shapes: of all parameters.
      widen: everything to float32; otherwise weights keep their stored dtype and experts decode to
        bfloat16, which holds every MXFP4 value exactly.

    Raises:
      CheckpointError: a tensor is missing or has another shape.
    """

    def read(path: str, shape: tuple[int, ...]) -> np.ndarray:
        name = tensor_name((path,))
        if EXPERTS in name:
            return _stack_experts(tensors, name, shape, widen)
        return _fit(name, _get(tensors, name), shape)

    return {path: _placed(read(path, shape), widen) for path, shape in shapes.items()}


def read_drafter(
    tensors: Tensors, shapes: Shapes, widen: bool, target: Tensors | None = None
) -> Weights:
    """The drafter's weights; see `read_target`.

    Args:
      target: the target's tensors, whose embedding and head stand in where the drafter's are not
        stored (newer `speculators` drop them).
    """
    shared = {
        "embed_tokens.weight": TARGET_PREFIX + "model.embed_tokens.weight",
        "lm_head.weight": TARGET_PREFIX + "lm_head.weight",
    }

    def read(path: str, shape: tuple[int, ...]) -> np.ndarray:
        if path in shared and path not in tensors and target is not None:
            return _fit(shared[path], _get(target, shared[path]), shape)
        return _fit(path, _get(tensors, path), shape)

    return {path: _placed(read(path, shape), widen) for path, shape in shapes.items()}


def _placed(value: np.ndarray, widen: bool) -> Array:
    """On the device. Cast by numpy: jax would compile a program for every shape."""
    return jax.device_put(np.asarray(value, np.float32) if widen else value)


def _get(tensors: Tensors, name: str) -> np.ndarray:
    try:
        return tensors[name]
    except KeyError:
        raise CheckpointError(f"{name}: missing in the checkpoint") from None


def _fit(name: str, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if value.shape != shape:
        raise CheckpointError(
            f"{name}: expected shape {list(shape)} from the config, found {list(value.shape)}"
        )
    return value


def _stack_experts(tensors: Tensors, name: str, shape: tuple[int, ...], widen: bool) -> np.ndarray:
    """Experts 0..E-1 of one kind, decoded if packed: [E, out, in]."""
    stem, which = name.rsplit(".", 1)
    dtype = np.dtype(np.float32 if widen else ml_dtypes.bfloat16)
    out = np.empty(shape, dtype)
    for e in range(shape[0]):
        one = f"{stem}.{e}.{which}.weight"
        if one + "_packed" in tensors:
            packed, scale = tensors[one + "_packed"], _get(tensors, one + "_scale")
            out[e] = _fit(one, mxfp4.decode(packed, scale), shape[1:])
        else:
            out[e] = _fit(one, _get(tensors, one), shape[1:])
    return out
