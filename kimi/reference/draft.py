"""The DSpark drafter as plain jax.numpy: one forward pass proposes a whole block.

Rows of a block are the anchor (the newest token, not yet seen by the target) and masks after it;
row j's logits are for position anchor + j + 1. All rows attend to the draft KV cache, made of the
target's taps before the anchor, and to each other (causally if the drafter has a sliding window). A
low-rank Markov term then corrects each row's logits by the token chosen for the row before, left to
right.

Source: speculators' DSpark, `config.DraftConfig`.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from kimi.config import DraftConfig
from kimi.reference.numerics import F32, Embedding, GatedMlp, Linear, Precision, RMSNorm, product
from kimi.reference.state import Draft, DraftCache


def rotate(x: Array, positions: Array, theta: float) -> Array:
    """Half-split rotary embedding; x [T, H, K], positions [T]. float32 inside."""
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=F32) / half)
    angle = positions.astype(F32)[:, None, None] * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = x[..., :half].astype(F32), x[..., half:].astype(F32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


class DraftAttention(nnx.Module):
    """Grouped-query attention over cache and block, with per-head q and k norms."""

    def __init__(self, config: DraftConfig, precision: Precision, rngs: nnx.Rngs):
        c = config
        query, key = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = Linear(c.hidden_size, query, precision, rngs)
        self.k_proj = Linear(c.hidden_size, key, precision, rngs)
        self.v_proj = Linear(c.hidden_size, key, precision, rngs)
        self.o_proj = Linear(query, c.hidden_size, precision, rngs, 0.3)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
        self.config = config
        self.precision = precision

    def keys_values(self, x: Array, positions: Array) -> tuple[Array, Array]:
        """x [T, D] -> rotated keys and values, each [T, KV heads, head width]."""
        shape = (x.shape[0], -1, self.config.head_dim)
        keys = self.k_norm(self.k_proj(x).reshape(shape))
        values = self.v_proj(x).reshape(shape)
        return rotate(keys, positions, self.config.rope_theta), values

    def __call__(
        self, x: Array, positions: Array, cached: tuple[Array, Array], visible: Array
    ) -> Array:
        """x [K, D] at `positions` [K]; cached keys and values [S, ...]; visible [S] -> [K, D]."""
        c, rows = self.config, x.shape[0]
        groups = c.num_attention_heads // c.num_key_value_heads
        q = self.q_norm(self.q_proj(x).reshape(rows, c.num_attention_heads, c.head_dim))
        q = rotate(q, positions, c.rope_theta).reshape(rows, -1, groups, c.head_dim)
        block = self.keys_values(x, positions)
        within = jnp.ones((rows, rows), bool)
        if c.causal_block:
            within = jnp.tril(within)
        mask = jnp.concatenate([jnp.broadcast_to(visible, (rows, len(visible))), within], 1)
        # Slots that are not visible may hold anything, NaN included: clear them.
        keys, values = (
            jnp.concatenate([jnp.where(visible[:, None, None], old, 0).astype(new.dtype), new])
            for old, new in zip(cached, block, strict=True)
        )
        scores = self._product("qhgd,khd->hgqk", q, keys) * c.head_dim**-0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
        out = self._product("hgqk,khd->qhgd", weights, values)
        return self.o_proj(out.reshape(rows, -1).astype(x.dtype))

    def _product(self, spec: str, a: Array, b: Array) -> Array:
        return product(spec, a, b, self.precision.matmul)


def _swiglu(gate: Array, up: Array) -> Array:
    """SiLU, not the target's SiTU."""
    return jax.nn.silu(gate) * up


class DraftLayer(nnx.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: DraftConfig, precision: Precision, rngs: nnx.Rngs):
        size = config.hidden_size
        self.input_layernorm = RMSNorm(size, config.rms_norm_eps)
        self.self_attn = DraftAttention(config, precision, rngs)
        self.post_attention_layernorm = RMSNorm(size, config.rms_norm_eps)
        self.mlp = GatedMlp(size, config.intermediate_size, _swiglu, precision, rngs)


class MarkovHead(nnx.Module):
    """Correction of a row's logits by the token before it: w2 . w1[token]."""

    def __init__(self, config: DraftConfig, precision: Precision, rngs: nnx.Rngs):
        self.markov_w1 = Embedding(config.vocab_size, config.markov_rank, precision, rngs)
        self.markov_w2 = Linear(config.markov_rank, config.vocab_size, precision, rngs, 0.0)


class ConfidenceProjection(Linear):
    """The one linear map of the drafter that has a bias [1]."""

    def __init__(self, width: int, precision: Precision, rngs: nnx.Rngs):
        super().__init__(width, 1, precision, rngs, 0.0)
        self.bias = nnx.Param(jnp.zeros(1))


class ConfidenceHead(nnx.Module):
    """sigmoid(proj [hidden; w1[previous token]] + bias)."""

    def __init__(self, config: DraftConfig, precision: Precision, rngs: nnx.Rngs):
        width = config.hidden_size + config.markov_rank
        self.proj = ConfidenceProjection(width, precision, rngs)

    def logit(self, hidden: Array, embedded: Array) -> Array:
        """hidden [..., D], embedded [..., rank] -> [...] float32 log odds of acceptance."""
        x = jnp.concatenate([hidden, embedded.astype(hidden.dtype)], -1)
        return (self.proj(x)[..., 0].astype(F32)) + self.proj.bias[...][0].astype(F32)


class Dspark(nnx.Module):
    """The drafter; module names are the checkpoint's."""

    def __init__(self, config: DraftConfig, precision: Precision, rngs: nnx.Rngs):
        c = config
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size, precision, rngs)
        self.fc = Linear(c.tap_width, c.hidden_size, precision, rngs)
        self.hidden_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.layers = nnx.List([DraftLayer(c, precision, rngs) for _ in range(c.num_hidden_layers)])
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = Linear(c.hidden_size, c.vocab_size, precision, rngs, 0.3)
        self.markov_head = MarkovHead(c, precision, rngs)
        self.confidence_head = ConfidenceHead(c, precision, rngs)
        self.config = config

    def extend(self, taps: Array, cache: DraftCache, num_valid: Array | None = None) -> DraftCache:
        """Appends committed tokens to the cache.

        Args:
          taps: [T, len(taps) * D], the target's streams of the next T tokens, in id order.
          cache: of the tokens before.
          num_valid: [] int32, how many of the T are valid (default T); the rest leave no trace.
        """
        count, slots = taps.shape[0], cache.positions.shape[0]
        num_valid = jnp.asarray(count if num_valid is None else num_valid, jnp.int32)
        positions = cache.length + jnp.arange(count, dtype=jnp.int32)
        end = cache.length + num_valid
        # Of T > S new tokens only the last S may be written: two to one slot would race.
        written = (positions < end) & (positions >= end - slots)
        slot = jnp.where(written, positions % slots, slots)
        context = self.hidden_norm(self.fc(taps))
        keys, values = cache.keys, cache.values
        for i, layer in enumerate(self.layers):
            k, v = layer.self_attn.keys_values(context, positions)
            keys = keys.at[i, slot].set(k.astype(keys.dtype), mode="drop")
            values = values.at[i, slot].set(v.astype(values.dtype), mode="drop")
        slot_positions = cache.positions.at[slot].set(positions, mode="drop")
        return DraftCache(keys, values, slot_positions, end)

    def hidden(self, anchor: Array, cache: DraftCache) -> Array:
        """Final-normed hidden rows [K, D] of the block at token `anchor` ([] int32).

        Every row sees the same cached positions, max(0, anchor - window) to anchor - 1.
        """
        c = self.config
        masks = jnp.full((c.block_size - 1,), c.mask_token_id, jnp.int32)
        x = self.embed_tokens(jnp.concatenate([anchor[None].astype(jnp.int32), masks]))
        positions = cache.length + jnp.arange(c.block_size)
        visible = (cache.positions >= 0) & (cache.positions < cache.length)
        if c.sliding_window is not None:
            visible &= cache.positions >= cache.length - c.sliding_window
        for i, layer in enumerate(self.layers):
            cached = (cache.keys[i], cache.values[i])
            x = x + layer.self_attn(layer.input_layernorm(x), positions, cached, visible)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)

    def heads(self, hidden: Array, previous: Array) -> tuple[Array, Array, Array]:
        """Logits and confidence of rows whose previous token is known.

        Args:
          hidden: [..., D] final-normed.
          previous: [...] int32, the token at the position before the predicted one.

        Returns: logits and base logits, [..., vocab] float32; confidence log odds [...].
        """
        embedded = self.markov_head.markov_w1(previous)
        base = self.lm_head(hidden).astype(F32)
        logits = base + self.markov_head.markov_w2(embedded).astype(F32)
        return logits, base, self.confidence_head.logit(hidden, embedded)

    def draft(self, anchor: Array, cache: DraftCache) -> Draft:
        """Drafts a block greedily, left to right, over the full vocabulary."""
        hidden = self.hidden(anchor, cache)

        def row(previous: Array, h: Array) -> tuple[Array, tuple[Array, ...]]:
            logits, base, confidence = self.heads(h, previous)
            token = jnp.argmax(logits, -1).astype(jnp.int32)
            return token, (token, logits, jax.nn.sigmoid(confidence), base)

        _, (tokens, logits, confidence, base) = lax.scan(row, anchor.astype(jnp.int32), hidden)
        return Draft(tokens, logits, confidence, hidden, base)
