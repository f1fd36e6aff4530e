"""Multi-head latent attention without positions (NoPE), in absorbed form over a latent cache.

The cache holds per token the normed latent c (kv_lora_rank values) and a key part r shared by all
heads. A head's key is [W_UK c, r] and its value W_UV c, so that

    q . k = (W_UK^T q_nope) . c + q_rope . r        and        sum p v = W_UV sum p c:

keys and values are never expanded. The part called "rope" on disk is not rotated.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from kimi.config import ModelConfig
from kimi.reference.numerics import F32, Linear, Precision, RMSNorm, product
from kimi.reference.state import MlaCache


class Mla(nnx.Module):
    """One MLA layer (`self_attn` of a layer in `full_attn_layers`); attribute names as on disk."""

    def __init__(self, config: ModelConfig, precision: Precision, rngs: nnx.Rngs):
        c, hidden = config, config.hidden_size

        def linear(size_in: int, size_out: int, gain: float = 1.0) -> Linear:
            return Linear(size_in, size_out, precision, rngs, gain)

        value_width = c.num_attention_heads * c.v_head_dim
        self.q_a_proj = linear(hidden, c.q_lora_rank)
        self.q_a_layernorm = RMSNorm(c.q_lora_rank, c.latent_norm_eps)
        self.q_b_proj = linear(c.q_lora_rank, c.num_attention_heads * c.qk_head_dim)
        self.kv_a_proj_with_mqa = linear(hidden, c.latent_cache_width)
        self.kv_a_layernorm = RMSNorm(c.kv_lora_rank, c.latent_norm_eps)
        self.kv_b_proj = linear(
            c.kv_lora_rank, c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim)
        )
        self.g_proj = linear(hidden, value_width)
        self.o_proj = linear(value_width, hidden, 0.3)
        self.config = config
        self.precision = precision

    def __call__(
        self, x: Array, cache: MlaCache, length: Array, num_valid: Array | None = None
    ) -> tuple[Array, MlaCache]:
        """Causal attention of T new tokens over the cache and each other.

        Args:
          x: [T, D] normed input.
          cache: latents of the tokens before; [S, width].
          length: [] int32, tokens in the cache = position of x[0].
          num_valid: [] int32 (unused); later rows of x are padding whose cache rows stay invalid.

        Returns: [T, D]; the cache with the T rows written from `length` on (rows beyond the
          capacity are dropped: callers check it, see `decoding.engine`).
        """
        del num_valid
        tokens = x.shape[0]
        positions = length + jnp.arange(tokens)
        new = self._latent(x).astype(cache.latent.dtype)
        latent = cache.latent.at[positions].set(new, mode="drop", unique_indices=True)
        slots = jnp.arange(latent.shape[0])
        # 0 * NaN is NaN: invalid rows must be cleared, not only masked out of the softmax.
        valid = jnp.where((slots < length + tokens)[:, None], latent, 0)
        visible = slots[None, :] <= positions[:, None]
        out = self._attend(self._queries(x), valid, visible)
        gated = out.reshape(tokens, -1) * jax.nn.sigmoid(self.g_proj(x).astype(F32))
        return self.o_proj(gated.astype(x.dtype)), MlaCache(latent)

    rows = __call__  # invalid cache rows make a rollback free

    def _latent(self, x: Array) -> Array:
        """What the cache keeps of x [T, D]: [T, kv_lora_rank + rope]."""
        raw = self.kv_a_proj_with_mqa(x)
        rank = self.config.kv_lora_rank
        return jnp.concatenate([self.kv_a_layernorm(raw[:, :rank]), raw[:, rank:]], -1)

    def _queries(self, x: Array) -> Array:
        """[T, H, nope + rope] queries."""
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        return q.reshape(x.shape[0], self.config.num_attention_heads, -1)

    def _attend(self, q: Array, latent: Array, visible: Array) -> Array:
        """q [T, H, nope + rope], latent [S, rank + rope], visible [T, S] -> [T, H, V] float32."""
        c, dtype = self.config, self.precision.matmul
        kv_b = self.kv_b_proj.weight[...].astype(dtype)
        kv_b = kv_b.reshape(c.num_attention_heads, c.qk_nope_head_dim + c.v_head_dim, -1)
        w_uk, w_uv = kv_b[:, : c.qk_nope_head_dim], kv_b[:, c.qk_nope_head_dim :]

        absorbed = product("thn,hnr->thr", q[..., : c.qk_nope_head_dim], w_uk, dtype)
        keys = jnp.concatenate([absorbed, q[..., c.qk_nope_head_dim :].astype(F32)], -1)
        scores = product("thr,sr->hts", keys, latent, dtype) * c.qk_head_dim**-0.5
        weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1)
        mixed = product("hts,sr->thr", weights, latent[:, : c.kv_lora_rank], dtype)
        return product("thr,hvr->thv", mixed, w_uv, dtype)
