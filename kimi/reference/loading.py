"""Between checkpoint tensors and the reference modules, both ways.

Module attributes are named after tensors, so one small rule (`tensor_name`) maps every parameter to
its tensor. Only routed experts differ: on disk one tensor per expert, maybe MXFP4; here stacked.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from kimi.codecs import mxfp4
from kimi.config import DraftConfig, ModelConfig
from kimi.config.model import TARGET_PREFIX
from kimi.errors import CheckpointError
from kimi.reference.draft import Dspark
from kimi.reference.model import K3
from kimi.reference.numerics import FLOAT32, Precision

Tensors = Mapping[str, np.ndarray]
EXPERTS = ".experts."


def tensor_name(path: tuple[Any, ...]) -> str:
    """The checkpoint's name of a target parameter, given its path in the module tree."""
    name = ".".join(map(str, path))
    name = name.replace("_res.norm.", "_res_norm.").replace("_res.proj", "_res_proj.weight")
    return TARGET_PREFIX + (name if name.startswith("lm_head.") else "model." + name)


def draft_tensor_name(path: tuple[Any, ...]) -> str:
    """The checkpoint's name of a drafter parameter: the path itself."""
    return ".".join(map(str, path))


def load_model(tensors: Tensors, config: ModelConfig, precision: Precision = FLOAT32) -> K3:
    """Builds the target from checkpoint tensors.

    Args:
      tensors: name -> array in the stored dtype and the model's shape: a `checkpoint.Checkpoint`,
        which also refuses NaN, or the like.
      config: of the same checkpoint.
      precision: float32 widens every weight; with bfloat16 matmuls weights keep their stored dtype
        and experts decode to bfloat16, which holds every MXFP4 value exactly.

    Raises:
      CheckpointError: a tensor is missing or has another shape.
    """

    def read(path: tuple[Any, ...], shape: tuple[int, ...]) -> np.ndarray:
        name = tensor_name(path)
        if EXPERTS in name:
            return _stack_experts(tensors, name, shape, precision)
        return _fit(name, _get(tensors, name), shape)

    return _fill(lambda: K3(config, precision, nnx.Rngs(0)), read, precision)


def load_drafter(
    tensors: Tensors,
    config: DraftConfig,
    precision: Precision = FLOAT32,
    target: Tensors | None = None,
) -> Dspark:
    """Builds the drafter; see `load_model`.

    Args:
      target: the target's tensors, whose embedding and head stand in where the drafter's are not
        stored (newer `speculators` drop them).
    """
    shared = {
        "embed_tokens.weight": TARGET_PREFIX + "model.embed_tokens.weight",
        "lm_head.weight": TARGET_PREFIX + "lm_head.weight",
    }

    def read(path: tuple[Any, ...], shape: tuple[int, ...]) -> np.ndarray:
        name = draft_tensor_name(path)
        if name in shared and name not in tensors and target is not None:
            return _fit(shared[name], _get(target, shared[name]), shape)
        return _fit(name, _get(tensors, name), shape)

    return _fill(lambda: Dspark(config, precision, nnx.Rngs(0)), read, precision)


def export_tensors(
    model: nnx.Module, name: Callable[[tuple[Any, ...]], str]
) -> Iterator[tuple[str, np.ndarray]]:
    """The parameters of a model under their checkpoint names, experts split, all float32.

    Args:
      model: a `K3` or a `Dspark`.
      name: `tensor_name` or `draft_tensor_name`.
    """
    for path, param in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        full, value = name(path), np.asarray(param[...], np.float32)
        if EXPERTS in full:
            stem, which = full.rsplit(".", 1)
            for e, expert in enumerate(value):
                yield f"{stem}.{e}.{which}.weight", expert
        else:
            yield full, value


def _fill(
    build: Callable[[], Any],
    read: Callable[[tuple[Any, ...], tuple[int, ...]], np.ndarray],
    precision: Precision,
) -> Any:
    """Builds the module tree without weights, then puts the tensors in."""
    graph, state = nnx.split(nnx.eval_shape(build))
    filled = []
    for path, param in nnx.to_flat_state(state):
        value = read(path, param.shape)
        dtype = jnp.float32 if precision.matmul == jnp.float32 else value.dtype
        filled.append((path, param.replace(jnp.asarray(value, dtype))))
    return nnx.merge(graph, nnx.from_flat_state(filled))


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


def _stack_experts(
    tensors: Tensors, name: str, shape: tuple[int, ...], precision: Precision
) -> np.ndarray:
    """Experts 0..E-1 of one kind, decoded if packed: [E, out, in]."""
    stem, which = name.rsplit(".", 1)
    dtype = np.dtype(np.float32 if precision.matmul == jnp.float32 else jnp.bfloat16)
    out = np.empty(shape, dtype)
    for e in range(shape[0]):
        one = f"{stem}.{e}.{which}.weight"
        if one + "_packed" in tensors:
            packed, scale = tensors[one + "_packed"], _get(tensors, one + "_scale")
            out[e] = _fit(one, mxfp4.decode(packed, scale), shape[1:])
        else:
            out[e] = _fit(one, _get(tensors, one), shape[1:])
    return out
