"""The drafter's context of many committed tokens, from the target's taps.

Oracle: reference.draft.Dspark.extend.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kimi.kernels.draft.cache import BLOCK_POSITIONS, DraftCache
from kimi.kernels.draft.layout import DraftWeights
from kimi.kernels.draft.plan import DraftPlan
from kimi.prefill.collectives import Collectives
from kimi.prefill.layer import Span
from kimi.prefill.matrices import Tiles, left
from kimi.prefill.mixing import Vectors, rms_norm
from kimi.prefill.pairs import pack


@jax.named_scope("drafter")
def extend(
    plan: DraftPlan, weights: DraftWeights, context: Array, taps: Array, span: Span
) -> Array:
    """Adds committed tokens to the draft KV cache.

    Args:
      plan: of the draft kernel.
      weights: of the rank.
      context: uint32 [layers, blocks, words, 128] of the rank, see `DraftCache`.
      taps: float32 [taps, T / R, D], those of the rank's tokens.
      span: of the T tokens.

    Returns: the cache with `span.count` more positions.
    """
    dense, vectors = weights.dense, weights.vectors
    layout, c = plan.layout, plan.layout.config
    collectives = Collectives(layout.mesh.ranks)
    rows = left(jnp.concatenate(list(taps), 1))
    fuse = Tiles.of(dense, layout.fuse_stream, 0)
    fused = collectives.own_rounded(fuse.product("fuse", collectives.gather_tokens(rows)))
    frame = Vectors(layout.frame_vectors, vectors[-1])
    own = left(rms_norm(fused, frame["committed_norm"], c.rms_norm_eps))
    x = collectives.gather_tokens(own)
    cos, sin = _angles(span, x.shape[0], c.head_dim, c.rope_theta)
    heads, keys = layout.heads * c.head_dim, layout.local_key_heads * c.head_dim

    def layer(carry: None, inputs: tuple[Array, Array, Array]) -> tuple[None, Array]:
        number, small, ring = inputs
        first = layout.layer_tile + number * layout.layer_stream.tiles
        found = Tiles.of(dense, layout.layer_stream, first).product("project", x)[:, heads:]
        shape = (x.shape[0], layout.local_key_heads, c.head_dim)
        key, value = found[:, :keys].reshape(shape), found[:, keys:].reshape(shape)
        norm = Vectors(layout.layer_vectors, small)["key_norm"]
        key = _rotated(rms_norm(key, norm, c.rms_norm_eps), cos, sin)
        return carry, _insert(plan.cache, ring, key, value, span)

    numbers = jnp.arange(c.num_hidden_layers)
    return lax.scan(layer, None, (numbers, vectors[: c.num_hidden_layers], context))[1]


def _angles(span: Span, tokens: int, width: int, theta: float) -> tuple[Array, Array]:
    """Cosine and sine [T, 1, width / 2] of all positions."""
    half = width // 2
    frequency = (theta ** (-np.arange(half) / half)).astype(np.float32)
    position = (span.start + jnp.arange(tokens)).astype(jnp.float32)
    angle = position[:, None, None] * frequency
    return jnp.cos(angle), jnp.sin(angle)


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    """Half-split rotary embedding of [T, H, K]."""
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _insert(form: DraftCache, ring: Array, keys: Array, values: Array, span: Span) -> Array:
    """A layer's ring [blocks, words, 128] with new keys and values [T, heads, width]."""
    tokens = keys.shape[0]
    channels = jnp.concatenate([keys, values], -1).reshape(tokens, -1)
    words = pack(channels[:, 0::2], channels[:, 1::2])
    # The newest position that every slot may hold: of more tokens than slots the first are gone.
    last = span.start + span.count - 1
    slot = jnp.arange(form.slots)
    index = last - (last - slot) % form.slots - span.start
    fresh = (index >= 0) & (index < span.count)
    found = jnp.take(words, jnp.clip(index, 0, tokens - 1), 0)
    blocks = found.reshape(form.blocks, BLOCK_POSITIONS, form.words).swapaxes(1, 2)
    return jnp.where(fresh.reshape(form.blocks, 1, BLOCK_POSITIONS), blocks, ring)
