"""What one sequence carries from token to token: KDA states, MLA caches, the drafter's KV cache.

All states are for a single sequence; batches are made with `jax.vmap`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from kimi.config import DraftConfig, ModelConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KdaState:
    """State of one KDA layer.

    Attributes:
      conv_state: [conv size - 1, 3, H * K] stream dtype: the last pre-convolution projections of q,
        k, v, oldest first.
      recurrent_state: [H, K, V] float32.
    """

    conv_state: Array
    recurrent_state: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MlaCache:
    """Cache of one MLA layer.

    Attributes:
      latent: [S, kv_lora_rank + qk_rope_head_dim]: per token the normed latent, then the key part
        that all heads share (neither normed nor rotated). Rows from the sequence length on are
        invalid: nothing may depend on them, not even by NaN.
    """

    latent: Array


LayerState = KdaState | MlaCache


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ModelState:
    """State of the whole model for one sequence.

    Attributes:
      layers: one `KdaState` or `MlaCache` per layer.
      length: [] int32, tokens consumed so far = position of the next token.
    """

    layers: tuple[LayerState, ...]
    length: Array

    @property
    def capacity(self) -> int | None:
        """Cache slots S, or None for a model without MLA layers (no limit)."""
        caches = [s.latent.shape[-2] for s in self.layers if isinstance(s, MlaCache)]
        return caches[0] if caches else None


def initial_state(config: ModelConfig, capacity: int, dtype: DTypeLike) -> ModelState:
    """The state before the first token, with room for `capacity` tokens in the MLA caches."""
    kda = config.kda
    layers: list[LayerState] = []
    for layer in range(config.num_hidden_layers):
        if config.is_mla(layer):
            layers.append(MlaCache(jnp.zeros((capacity, config.latent_cache_width), dtype)))
        else:
            conv_state = jnp.zeros((kda.short_conv_kernel_size - 1, 3, kda.width), dtype)
            shape = (kda.num_heads, kda.head_dim, kda.head_dim)
            layers.append(KdaState(conv_state, jnp.zeros(shape, jnp.float32)))
    return ModelState(tuple(layers), jnp.zeros((), jnp.int32))


def rollback(states: ModelState, length: Array, num_rows: Array) -> ModelState:
    """Rolls back to the state after the first rows of a verified block.

    Args:
      states: what `K3.rows` returned: KDA states after each of R rows (leading axis R); MLA caches
        with all R rows written.
      length: [] int32, sequence length before the block.
      num_rows: [] int32 in 1..R, the rows that stay.

    Returns: the state as if only those rows had been consumed. It is exact: KDA states are picked,
      not recomputed, and cache rows beyond the new length are invalid.
    """

    def pick(layer: LayerState) -> LayerState:
        if isinstance(layer, MlaCache):
            return layer
        return KdaState(layer.conv_state[num_rows - 1], layer.recurrent_state[num_rows - 1])

    return ModelState(tuple(pick(s) for s in states.layers), length + num_rows)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DraftCache:
    """The draft KV cache: keys and values of committed tokens, in a ring.

    Attributes:
      keys, values: [L, S, KV heads, head width]; keys are normed and rotated.
      positions: [S] int32, the position each slot holds, -1 if empty. Position p lives in slot
        p mod S; S is the sliding window, or the capacity for full attention.
      length: [] int32, committed tokens so far = position of the next anchor.
    """

    keys: Array
    values: Array
    positions: Array
    length: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Draft:
    """One drafted block of K = block_size rows; row j is about position anchor + j + 1.

    Attributes:
      tokens: [K] int32 candidates.
      logits: [K, vocab] float32, Markov term included.
      confidence: [K] float32, probability that row j is accepted given that all before it were.
      hidden: [K, D] after the final norm.
      base_logits: [K, vocab] float32, without the Markov term.
    """

    tokens: Array
    logits: Array
    confidence: Array
    hidden: Array
    base_logits: Array


def initial_draft_cache(config: DraftConfig, capacity: int, dtype: DTypeLike) -> DraftCache:
    """An empty cache with room for the window, or for `capacity` tokens without one."""
    slots = config.sliding_window or capacity
    shape = (config.num_hidden_layers, slots, config.num_key_value_heads, config.head_dim)
    positions = jnp.full((slots,), -1, jnp.int32)
    keys, values = jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)  # two buffers: both are donated
    return DraftCache(keys, values, positions, jnp.zeros((), jnp.int32))
