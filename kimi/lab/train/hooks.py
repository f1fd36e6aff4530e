"""Wrappers put around submodules of a merged model: what training needs and decoding must not have.

A wrapped model lives inside one traced function and is thrown away with it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from kimi.reference.model import K3
from kimi.reference.moe import Experts, LatentMoe, Router


class Dropout(nnx.Module):
    """A module whose output (the first, if it returns several) is dropped out.

    Args:
      inner: the module.
      key: random key.
      rate: [] float32, share of values set to zero; the others grow to keep the mean.
    """

    def __init__(self, inner: nnx.Module, key: Array, rate: Array):
        self.inner = inner
        self.key = nnx.data(key)
        self.rate = nnx.data(rate)

    def __call__(self, *args: object) -> object:
        """The module's outputs."""
        out = self.inner(*args)
        return (self._drop(out[0]), *out[1:]) if isinstance(out, tuple) else self._drop(out)

    def _drop(self, x: Array) -> Array:
        keep = 1 - self.rate
        return jnp.where(jax.random.bernoulli(self.key, keep, x.shape), x / keep, 0)


class RecordingRouter(nnx.Module):
    """A router that appends the expert ids it returns to a list."""

    def __init__(self, inner: Router, seen: list[Array]):
        self.inner = inner
        self.seen = nnx.static(seen)

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """As `Router`."""
        ids, weights = self.inner(x)
        self.seen.append(ids)
        return ids, weights


class DenseExperts(nnx.Module):
    """Experts that all run even for one token: under `vmap` over many sequences that is one matrix
    product, where gathering would copy the chosen experts once for each sequence."""

    def __init__(self, inner: Experts):
        self.inner = inner

    def __call__(self, z: Array, ids: Array, weights: Array) -> Array:
        """As `Experts`."""
        return self.inner.dense(z, ids, weights).astype(z.dtype)


def add_dropout(model: K3, key: Array, rate: Array) -> None:
    """Drops out the embedding and the output of every residual branch."""
    keys = iter(jax.random.split(key, 1 + 2 * len(model.layers)))

    def drop(module: nnx.Module) -> nnx.Module:
        return Dropout(module, next(keys), rate)

    _wrap(model, "embed_tokens", drop)
    for layer in model.layers:
        _wrap(layer, "self_attn", drop)
        _wrap(layer, "block_sparse_moe" if hasattr(layer, "block_sparse_moe") else "mlp", drop)


def record_routing(model: K3) -> list[Array]:
    """A list that a forward pass fills with the expert ids [T, k] of every MoE layer."""
    seen: list[Array] = []
    for moe in _moe_layers(model):
        _wrap(moe, "gate", lambda router: RecordingRouter(router, seen))
    return seen


def run_all_experts(model: K3) -> None:
    """Makes the MoE layers fit for single tokens under `vmap`, see `DenseExperts`."""
    for moe in _moe_layers(model):
        _wrap(moe, "experts", DenseExperts)


def _wrap(owner: nnx.Module, name: str, wrapper: Callable[[Any], nnx.Module]) -> None:
    setattr(owner, name, wrapper(getattr(owner, name)))


def _moe_layers(model: K3) -> list[LatentMoe]:
    return [x.block_sparse_moe for x in model.layers if hasattr(x, "block_sparse_moe")]
