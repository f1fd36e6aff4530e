"""An MLA layer over a chunk: absorbed queries, a running softmax over tiles of the cache.

The cache is the decode kernel's: a position per lane, a word a pair of values, so that queries and
mixed latents have even values first (see `pairs`). The chunk's latents join it before it is read.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from kimi.kernels.layer_table import Column
from kimi.kernels.plan import Plan
from kimi.kernels.records import OPEN_POSITIONS
from kimi.prefill.layer import Layer
from kimi.prefill.matrices import left
from kimi.prefill.mixing import rms_norm
from kimi.prefill.pairs import BF16, F32, even_first, high, low, pack, padded

# Finite: rows that have seen nothing yet subtract it from minus infinity without a NaN.
_LOWEST = -1e30
_TILE_POSITIONS = 512


def tile_positions(plan: Plan) -> int:
    """Cached positions that are attended to at a time."""
    return min(_TILE_POSITIONS, plan.cache.tile_positions)


def region_blocks(tokens: int) -> int:
    """Blocks of the cache that a chunk is written into, wherever in a block it begins."""
    return tokens // OPEN_POSITIONS + 1


def first_block(layer: Layer, tokens: int) -> Array:
    """Where these blocks begin: the last ones of the cache at the latest, for what is dead."""
    last = layer.plan.cache.blocks - region_blocks(tokens)
    return jnp.minimum(layer.span.start // OPEN_POSITIONS, last)


def _joined(layer: Layer, old: Array, new: Array) -> Array:
    """The blocks [B, words, 128] from `first_block` on with the valid ones of new [T, words]."""
    first = first_block(layer, new.shape[0])
    position = first * OPEN_POSITIONS + jnp.arange(old.shape[0] * OPEN_POSITIONS)
    index = position - layer.span.start
    valid = (index >= 0) & (index < layer.span.count)
    found = jnp.take(new, jnp.clip(index, 0, new.shape[0] - 1), 0)
    blocks = found.reshape(old.shape[0], OPEN_POSITIONS, -1).swapaxes(1, 2)
    return jnp.where(valid.reshape(-1, 1, OPEN_POSITIONS), blocks, old)


def _words(layer: Layer, latent: Array) -> Array:
    """Latents [T, width] as words of the cache, [T, words]."""
    both = even_first(padded(latent.astype(BF16), 2 * layer.plan.cache.words))
    return pack(*jnp.split(both, 2, 1))


def _queries(layer: Layer, query: Array) -> Array:
    """Absorbed queries, bfloat16 [H T, 2 words], even values first; query: float32 [T, q_lora]."""
    c, tiles = layer.config, layer.attention
    normed = rms_norm(query, layer.vectors["query_norm"], c.latent_norm_eps)
    rows = tiles.product("mla_query", left(normed))
    heads, content = layer.plan.layout.mesh.local(c.num_attention_heads), c.qk_nope_head_dim
    found = []
    for head in range(heads):
        own = rows[:, head * content : (head + 1) * content]
        absorbed = tiles.product(f"mla_key_{head}", left(own))
        start = heads * content + head * c.qk_rope_head_dim
        shared = rows[:, start : start + c.qk_rope_head_dim]
        key = jnp.concatenate([absorbed, shared], 1).astype(BF16)
        found.append(even_first(padded(key, 2 * layer.plan.cache.words)))
    return jnp.concatenate(found)


class _Partial(NamedTuple):
    """Softmax over the positions seen so far, of M query rows: [M, 1], [M, 1], [M, rank]."""

    maximum: Array
    total: Array
    mixed: Array


def _start(rows: int, rank: int) -> _Partial:
    column = jnp.zeros((rows, 1), F32)
    return _Partial(column + _LOWEST, column, jnp.zeros((rows, rank), F32))


def _accumulate(
    partial: _Partial, queries: Array, words: Array, seen: Array, scale: float, rank: int
) -> _Partial:
    """Adds positions.

    Args:
      queries: bfloat16 [M, 2 words], even values first.
      words: uint32 [words, P], finite.
      seen: bool [M, P].
    """
    keys = jnp.concatenate([low(words), high(words)])
    values = jnp.concatenate([low(words[: rank // 2]), high(words[: rank // 2])])
    scores = jnp.dot(queries, keys, preferred_element_type=F32) * scale
    scores = jnp.where(seen, scores, -jnp.inf)
    maximum = jnp.maximum(partial.maximum, scores.max(-1, keepdims=True))
    weights, shrink = jnp.exp(scores - maximum), jnp.exp(partial.maximum - maximum)
    contract = (((1,), (1,)), ((), ()))
    part = lax.dot_general(weights.astype(BF16), values, contract, preferred_element_type=F32)
    total = partial.total * shrink + weights.sum(-1, keepdims=True)
    return _Partial(maximum, total, partial.mixed * shrink + part)


@jax.named_scope("attend")
def _attend(layer: Layer, queries: Array, cache: Array, own: Array) -> Array:
    """Mixed latents float32 [H T, rank], even values first.

    Args:
      queries: bfloat16 [H T, 2 words].
      cache: uint32 [MLA layers, blocks, words, 128]; positions from the chunk's first on are dead
        and may hold anything.
      own: uint32 [T, words], those of the chunk.
    """
    start, tokens, positions = layer.span.start, own.shape[0], tile_positions(layer.plan)
    blocks = positions // OPEN_POSITIONS
    rank, scale = layer.config.kv_lora_rank, layer.config.qk_head_dim**-0.5
    token = (jnp.arange(queries.shape[0]) % tokens)[:, None]

    def earlier(index: Array, partial: _Partial) -> _Partial:
        at = (layer[Column.STATE], index * blocks, 0, 0)
        words = lax.dynamic_slice(cache, at, (1, blocks, *cache.shape[2:]))[0]
        # Side by side block by block: a transpose would have the compiler turn the whole cache.
        words = jnp.concatenate([words[i] for i in range(blocks)], 1)
        valid = index * positions + jnp.arange(positions) < start
        words = jnp.where(valid, words, 0)  # 0 * NaN is NaN
        return _accumulate(partial, queries, words, valid[None], scale, rank)

    step = min(tokens, positions)

    def within(index: Array, partial: _Partial) -> _Partial:
        words = lax.dynamic_slice_in_dim(own, index * step, step).T
        seen = index * step + jnp.arange(step) <= token
        return _accumulate(partial, queries, words, seen, scale, rank)

    tiles = (start + positions - 1) // positions
    partial = lax.fori_loop(0, tiles, earlier, _start(queries.shape[0], rank))
    partial = lax.fori_loop(0, tokens // step, within, partial)
    return partial.mixed / partial.total  # a row sees itself: its total is not zero


def attend(layer: Layer, x: Array, cache: Array, region: Array) -> tuple[Array, Array]:
    """The layer's attention.

    Args:
      x: bfloat16 [T, D] from `matrices.left`, all tokens.
      cache: uint32 [MLA layers, blocks, words, 128].
      region: uint32 [`region_blocks`, words, 128], the layer's blocks from `first_block` on.

    Returns: partial sums float32 [T, D]; the region with the chunk's valid tokens.
    """
    c, mesh = layer.config, layer.plan.layout.mesh
    down, rank = layer.attention.product("mla_down", x), c.kv_lora_rank
    own = mesh.local(c.q_lora_rank)
    query, latent = (layer.collectives.gather_columns(d) for d in (down[:, :own], down[:, own:]))
    normed = rms_norm(latent[:, :rank], layer.vectors["latent_norm"], c.latent_norm_eps)
    new = _words(layer, jnp.concatenate([normed, latent[:, rank:]], 1))
    mixed = _attend(layer, _queries(layer, query), cache, new)
    return _output(layer, x, mixed), _joined(layer, region, new)


def _output(layer: Layer, x: Array, mixed: Array) -> Array:
    """Values absorbed, gated; partial sums [T, D]."""
    tiles, tokens = layer.attention, x.shape[0]
    heads = layer.plan.layout.mesh.local(layer.config.num_attention_heads)
    own = mixed.astype(BF16).reshape(heads, tokens, -1)
    values = [tiles.product(f"mla_value_{h}", own[h]) for h in range(heads)]
    gate = jax.nn.sigmoid(tiles.product("mla_gate", x))
    return tiles.product("mla_out", left(jnp.concatenate(values, 1) * gate))
