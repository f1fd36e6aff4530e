"""Small numeric building blocks shared by the reference model and the reference drafter."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.typing import DTypeLike

F32 = jnp.float32
L2_EPS = 1e-6  # added to the sum of squares (not the mean) of a KDA query or key


class Precision(NamedTuple):
    """Where the forward pass rounds.

    Attributes:
      stream: dtype of activations between operations, the residual streams included.
      matmul: dtype of matmul operands; sums are float32 and are cast to the dtype of the input.
    """

    stream: DTypeLike
    matmul: DTypeLike


FLOAT32 = Precision(jnp.float32, jnp.float32)  # the oracle's arithmetic
BFLOAT16 = Precision(jnp.bfloat16, jnp.bfloat16)  # the published code's arithmetic


def matmul(x: Array, w: Array, dtype: DTypeLike) -> Array:
    """x [..., in] times w [out, in], transposed -> [..., out] in x's dtype; float32 sums."""
    return product("...i,io->...o", x, w.T, dtype).astype(x.dtype)


def product(spec: str, a: Array, b: Array, dtype: DTypeLike) -> Array:
    """An einsum of operands rounded to dtype, with float32 sums, in float32."""
    a, b = a.astype(dtype), b.astype(dtype)
    if dtype == F32:  # accelerators default to less
        return jnp.einsum(spec, a, b, precision=lax.Precision.HIGHEST)

    def rounded(a: Array, b: Array) -> Array:
        return jnp.einsum(spec, a, b, preferred_element_type=F32)

    def widened(a: Array, b: Array) -> Array:
        return jnp.einsum(spec, a.astype(F32), b.astype(F32))

    # XLA has no such product of bfloat16 on CPUs but for small shapes. The values are the same.
    out: Array = lax.platform_dependent(a, b, cpu=widened, default=rounded)
    return out


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """RMSNorm over the last axis as published: float32 statistics, cast, then times weight."""
    x32 = x.astype(F32)
    normed = x32 * lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + eps)
    return normed.astype(x.dtype) * weight.astype(x.dtype)


def l2_normalize(x: Array) -> Array:
    """x / sqrt(sum x^2 + 1e-6) over the last axis, float32."""
    x = x.astype(F32)
    return x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + L2_EPS)


class Linear(nnx.Module):
    """A bias-free linear map; `weight` is [out, in] as on disk.

    Args:
      in_size, out_size: widths.
      precision: rounding rule.
      rngs: for the initial weights, normal with standard deviation gain / sqrt(in_size).
    """

    def __init__(
        self, in_size: int, out_size: int, precision: Precision, rngs: nnx.Rngs, gain: float = 1.0
    ):
        scale = gain * in_size**-0.5
        self.weight = nnx.Param(scale * jax.random.normal(rngs.params(), (out_size, in_size)))
        self.precision = precision

    def __call__(self, x: Array) -> Array:
        """x [..., in] -> [..., out], same dtype as x."""
        return matmul(x, self.weight[...], self.precision.matmul)


class GatedMlp(nnx.Module):
    """down(activation(gate(x), up(x))).

    Args:
      size, width: of x, and of the inner values.
      activation: of gate and up, each [..., width].
      precision, rngs: as in `Linear`.
    """

    def __init__(
        self,
        size: int,
        width: int,
        activation: Callable[[Array, Array], Array],
        precision: Precision,
        rngs: nnx.Rngs,
    ):
        self.gate_proj = Linear(size, width, precision, rngs)
        self.up_proj = Linear(size, width, precision, rngs)
        self.down_proj = Linear(width, size, precision, rngs, 0.3)
        self.activation = activation

    def __call__(self, x: Array) -> Array:
        """x [..., size] -> [..., size]."""
        return self.down_proj(self.activation(self.gate_proj(x), self.up_proj(x)))


class RMSNorm(nnx.Module):
    """RMSNorm with its weight [size], initially ones."""

    def __init__(self, size: int, eps: float):
        self.weight = nnx.Param(jnp.ones(size))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        """x [..., size] -> the same shape and dtype."""
        return rms_norm(x, self.weight[...], self.eps)


class Embedding(nnx.Module):
    """A token embedding table [vocab, size]."""

    def __init__(self, vocab: int, size: int, precision: Precision, rngs: nnx.Rngs):
        self.weight = nnx.Param(0.5 * jax.random.normal(rngs.params(), (vocab, size)))
        self.precision = precision

    def __call__(self, ids: Array) -> Array:
        """ids [...] int -> [..., size] in the stream dtype (rounded like a matmul operand)."""
        rows = self.weight[...][ids]
        return rows.astype(self.precision.matmul).astype(self.precision.stream)
