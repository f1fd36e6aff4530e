"""The draft KV cache to and from keys and values."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from kimi.kernels.chip import LANES
from kimi.kernels.draft.cache import DraftCache


def pack(form: DraftCache, keys: ArrayLike, values: ArrayLike, positions: ArrayLike) -> Array:
    """A cache that holds some positions.

    Args:
      keys, values: [layers, N, heads, width], rounded to bfloat16; keys normed and rotated.
      positions: [N] int32; -1 for entries that hold nothing. Two that share a slot must not both be
        there: leave out what is behind the window.
    """
    channels = jnp.concatenate([jnp.asarray(keys), jnp.asarray(values)], -1)
    pairs = channels.astype(jnp.bfloat16).reshape(*channels.shape[:2], form.words, 2)
    bits = pairs.view(jnp.uint16).astype(jnp.uint32)
    words = bits[..., 0] | bits[..., 1] << 16
    position = jnp.asarray(positions)
    slot = jnp.where(position < 0, form.slots, position % form.slots)
    ring = jnp.zeros((form.layers, form.slots, form.words), jnp.uint32)
    ring = ring.at[:, slot].set(words, mode="drop")
    return ring.reshape(form.layers, form.blocks, LANES, form.words).swapaxes(2, 3)


def unpack(form: DraftCache, cache: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of all slots, float32 [layers, slots, heads, width] each."""
    words = np.asarray(cache).swapaxes(2, 3).reshape(form.layers, form.slots, -1)
    bits = np.stack([words << np.uint32(16), words & np.uint32(0xFFFF0000)], -1)
    channels = np.ascontiguousarray(bits).view(np.float32)
    both = channels.reshape(form.layers, form.slots, form.heads, 2 * form.width)
    return both[..., : form.width], both[..., form.width :]
