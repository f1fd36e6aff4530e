"""Small tensors of a layer, norms, and the attention residual; every token on its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from kimi.kernels.vectors import Vector, offsets


@dataclass(frozen=True)
class Vectors:
    """The small tensors of a layer.

    Attributes:
      table: what they are.
      rows: float32 [rows, 128].
    """

    table: Sequence[Vector]
    rows: Array

    def __getitem__(self, name: str) -> Array:
        """A small tensor [n], float32."""
        return self.conv_weights(name)[0]

    def conv_weights(self, name: str) -> Array:
        """The weights of a convolution, [taps, channels], oldest first."""
        first = offsets(self.table)[name]
        vector = next(v for v in self.table if v.name == name)
        rows = self.rows[first : first + vector.device_rows]
        return rows.reshape(vector.kernel_size, -1)[:, : vector.width]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """RMSNorm over the last axis, float32 throughout."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def attn_res(residuals: Array, count: Array, stream: Array, weight: Array, eps: float) -> Array:
    """The softmax mix of the first `count` block residuals and the running stream.

    Args:
      residuals: float32 [N, T, D]; entries from `count` on are zero.
      count: [] int32.
      stream: float32 [T, D].
      weight: [D], of the scores: norm weight times projection.
      eps: of the scores' norm.

    Returns: float32 [T, D].
    """
    entries = jnp.concatenate([residuals, stream[None]])
    inverse = lax.rsqrt(jnp.mean(entries * entries, -1) + eps)
    # Sums of products, not matrix products: these would round their operands.
    scores = jnp.sum(entries * weight, -1) * inverse
    place = jnp.arange(len(entries))[:, None]
    valid = (place < count) | (place == len(residuals))
    shares = jax.nn.softmax(jnp.where(valid, scores, -jnp.inf), 0)
    return jnp.sum(entries * shares[..., None], 0)


@jax.named_scope("attn_res")
def attn_res_norm(
    vectors: Vectors,
    name: str,
    norm: str,
    residuals: Array,
    count: Array,
    stream: Array,
    eps: float,
) -> Array:
    """What a sublayer sees: the attention residual `name`, normed with `norm`; float32 [T, D]."""
    weight = vectors[f"{name}_norm"] * vectors[f"{name}_proj"]
    return rms_norm(attn_res(residuals, count, stream, weight, eps), vectors[norm], eps)
