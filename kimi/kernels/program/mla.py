"""Multi-head latent attention.

Query rows are (head, row) pairs: for every head one row, or a register tile of eight. Closed cache
tiles come from HBM; the blocks that new tokens are written into are in VMEM and come last.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.collectives import all_gather, gathered, reduce_scatter, wait
from kimi.kernels.context import Kernel, Layer, left_operand, unit_rms
from kimi.kernels.layer_table import Column
from kimi.kernels.ops import mla as ops
from kimi.kernels.ops.lanes import BF16, F32, I32, iota, side_by_side
from kimi.kernels.records import OPEN_POSITIONS, OPEN_SHIFT
from kimi.kernels.refs import Copy, Scalar
from kimi.kernels.streaming import open_loads, open_store, product, product_into, start_next_state

Item = tuple[Scalar, Scalar]  # sequence, and which of its tiles


def mla_down(k: Kernel, layer: Layer) -> None:
    """This rank's columns of the query's and the cache's latents."""
    all_gather(k, "query_gather", product(k, layer.attention, "mla_down", k.ws["normed"]))


def mla_gate(k: Kernel, layer: Layer) -> None:
    """The output gate."""
    product_into(k, layer.attention, "mla_gate", k.ws["normed"], k.ws["mla_gates"])


def mla_query(k: Kernel, layer: Layer) -> None:
    """Queries with keys absorbed; the new latents join the open blocks of the cache."""
    c, ws = k.config, k.ws
    wait(k, "query_gather")
    query, latent = gathered(
        k, "query_gather", k.mesh.local(c.q_lora_rank), k.mesh.local(c.latent_cache_width)
    )
    left = left_operand(_norm(query, layer.row("query_norm"), c.latent_norm_eps))
    product_into(k, layer.attention, "mla_query", left, ws["query"])
    heads, content = k.mesh.local(c.num_attention_heads), c.qk_nope_head_dim
    rows, width = k.row_tile, ws["keys"].shape[1]
    keys = []
    for head in range(heads):
        left = left_operand(ws["query"][:, head * content : (head + 1) * content])
        absorbed = product(k, layer.attention, f"mla_key_{head}", left)[:rows]
        start = heads * content + head * c.qk_rope_head_dim
        shared = ws["query"][:rows, start : start + c.qk_rope_head_dim]
        keys.append(_padded([absorbed, shared], width))
    below = k.plan.query_rows - heads * rows
    if below:
        keys.append(jnp.zeros((below, width), F32))
    ws["keys"][...] = jnp.concatenate(keys, 0).astype(BF16)
    first = _norm(latent[:, : c.kv_lora_rank], layer.row("latent_norm"), c.latent_norm_eps)
    _insert(k, layer, _padded([first, latent[:, c.kv_lora_rank :]], width))


def _norm(x: Array, weight: Array, eps: float) -> Array:
    return unit_rms(x, eps) * weight


def _padded(parts: list[Array], width: int) -> Array:
    """Side by side, zeros behind up to `width` columns."""
    missing = width - sum(p.shape[1] for p in parts)
    fill = [jnp.zeros((parts[0].shape[0], missing), F32)] if missing else []
    return jnp.concatenate([*parts, *fill], 1)


def _insert(k: Kernel, layer: Layer, new: Array) -> None:
    """Writes the latents [R, W] of this step's rows into the open blocks."""
    ws = k.ws
    rows = k.plan.rows
    for copy in open_loads(k, 0):
        copy.wait()
    for sequence in range(rows.sequences):
        own = new if rows.sequences == 1 else new[sequence : sequence + 1]
        position = k.step.length(sequence) & (OPEN_POSITIONS - 1)
        for block in range(k.plan.cache.open_blocks):
            words = ws["cache_open"][sequence, block]
            at = position - block * OPEN_POSITIONS
            ws["cache_new_open"][sequence, block] = ops.insert_rows(words, own, at)
    open_store(k, layer[Column.STATE]).start()

    def load_next(following: Array) -> None:
        for copy in open_loads(k, following):
            copy.start()

    start_next_state(layer, load_next)


def _closed(k: Kernel, sequence: int) -> Array:
    """Positions of a sequence before its open block."""
    return (k.step.length(sequence) >> OPEN_SHIFT) << OPEN_SHIFT


def _select(k: Kernel, sequence: Scalar, value_of: list[Array]) -> Array:
    """The entry of a list that a traced sequence means."""
    found = value_of[0]
    for i, value in enumerate(value_of[1:], 1):
        found = jnp.where(sequence == i, value, found)
    return found


def _tile_counts(k: Kernel) -> list[Array]:
    """Tiles of every sequence: at least one, which may be all dead, so that no loop is empty."""
    shift = k.plan.settings.cache_positions.bit_length() - 1
    whole = (1 << shift) - 1
    closed = [_closed(k, s) for s in range(k.plan.rows.sequences)]
    return [jnp.maximum((n + whole) >> shift, 1) for n in closed]


def _following(k: Kernel, item: Item) -> Item:
    sequence, tile = item
    last = tile + 1 >= _select(k, sequence, _tile_counts(k))
    return jnp.where(last, sequence + 1, sequence), jnp.where(last, 0, tile + 1)


def _tile_copy(k: Kernel, state: Scalar, item: Item, slot: Scalar) -> Copy:
    blocks = k.plan.cache.tile_blocks
    source = k.refs["cache"].at[state, item[0], pl.ds(item[1] * blocks, blocks)]
    target, sem = k.ws["cache_tiles"].at[slot], k.sems.local("cache_load")
    return pltpu.make_async_copy(source, target, sem.at[slot])


def start_cache_tiles(k: Kernel, state: Scalar) -> None:
    """Starts the first tiles of an MLA layer, as many as there are slots."""
    item: Item = (jnp.int32(0), jnp.int32(0))
    for slot in range(k.plan.settings.cache_slots):

        @pl.when(item[0] < k.plan.rows.sequences)
        def _(item: Item = item, slot: int = slot) -> None:
            _tile_copy(k, state, item, slot).start()

        item = _following(k, item)


def mla_attend(k: Kernel, layer: Layer) -> None:
    """Attention over the closed tiles, then over the open blocks.

    A tile's values are added up beside the scores of the tile behind it: the softmax of one would
    keep the matrix unit waiting.
    """
    c, ws = k.config, k.ws
    slots, sequences = k.plan.settings.cache_slots, k.plan.rows.sequences
    state, keys = layer[Column.STATE], ws["keys"][...]
    scale, positions = c.qk_head_dim**-0.5, k.plan.settings.cache_positions
    total = sum(_tile_counts(k)[1:], _tile_counts(k)[0])
    item: Item = (jnp.int32(0), jnp.int32(0))
    ahead, first_slot = item, jnp.int32(0)
    for _ in range(slots):
        ahead = _following(k, ahead)

    def attend(index: Array, carry: tuple[Item, Item, Array, Array, ops.Partial]) -> object:
        item, ahead, slot, score, partial = carry
        following = _following(k, item)
        after = jnp.where(slot + 1 == slots, 0, slot + 1)

        @pl.when(index + 1 < total)
        def _() -> None:
            _arrive(k, following, after)

        # Behind the last tile these are scores of an old one, which nobody reads.
        following_score = ops.scores(keys, _tile(k, after), scale)
        seen = jnp.where(_is_row_of(k, item[0]), _closed_of(k, item), 0)
        first = item[1] * positions
        partial = ops.accumulate(partial, [score], [_tile(k, slot)], first, seen)

        @pl.when(ahead[0] < sequences)
        def _() -> None:
            _tile_copy(k, state, ahead, slot).start()

        return following, _following(k, ahead), after, following_score, partial

    _arrive(k, item, first_slot)
    score = ops.scores(keys, _tile(k, first_slot), scale)
    begin = (item, ahead, first_slot, score, ops.start(k.plan.query_rows, c.kv_lora_rank))
    partial = jax.lax.fori_loop(0, total, attend, begin)[4]
    start_next_state(layer, lambda following: start_cache_tiles(k, following))
    ws["mixed"][...] = ops.finish(_attend_open(k, partial, keys, scale))


def _closed_of(k: Kernel, item: Item) -> Array:
    """Positions before the open block of a tile's sequence."""
    sequences = range(k.plan.rows.sequences)
    return _select(k, item[0], [_closed(k, sequence) for sequence in sequences])


def _arrive(k: Kernel, item: Item, slot: Scalar) -> None:
    """Waits for a tile, and clears its dead positions, of which only the last tile has any."""
    _tile_copy(k, 0, item, slot).wait()
    tiles, first = k.ws["cache_tiles"], item[1] * k.plan.settings.cache_positions
    closed = _closed_of(k, item)

    @pl.when(first + k.plan.settings.cache_positions > closed)
    def _() -> None:
        for block in range(k.plan.cache.tile_blocks):
            at = first + block * OPEN_POSITIONS
            tiles[slot, block] = ops.valid_words(tiles[slot, block], at, closed)


def _tile(k: Kernel, slot: Scalar) -> Array:
    """The words of a tile, positions side by side."""
    blocks = range(k.plan.cache.tile_blocks)
    return side_by_side([k.ws["cache_tiles"][slot, block] for block in blocks])


def _rows(k: Kernel) -> Array:
    """Which row of the model a query row is, lane-replicated."""
    return iota((k.plan.query_rows, LANES), 0) & (k.row_tile - 1)


def _is_row_of(k: Kernel, sequence: Scalar) -> Array:
    """Whether a query row belongs to a sequence."""
    if k.plan.rows.sequences == 1:
        return jnp.full((k.plan.query_rows, LANES), True)
    return _rows(k) == sequence


def _attend_open(k: Kernel, partial: ops.Partial, keys: Array, scale: float) -> ops.Partial:
    """Adds the blocks that hold this step's rows; row r of a block sees itself and those before."""
    for sequence in range(k.plan.rows.sequences):
        first, length = _closed(k, sequence), k.step.length(sequence)
        own = _rows(k) if k.plan.rows.sequences == 1 else 0
        seen = jnp.where(_is_row_of(k, sequence), length + 1 + own, 0).astype(I32)
        for block in range(k.plan.cache.open_blocks):
            at = first + block * OPEN_POSITIONS
            words = k.ws["cache_new_open"][sequence, block]
            words = ops.valid_words(words, at, length + k.plan.rows.block)
            score = ops.scores(keys, words, scale)
            partial = ops.accumulate(partial, [score], [words], at, seen)
    return partial


def mla_out(k: Kernel, layer: Layer) -> None:
    """Values absorbed, gated; partial sums of the output."""
    c, ws = k.config, k.ws
    rows, heads = k.row_tile, k.mesh.local(c.num_attention_heads)
    values = []
    for head in range(heads):
        left = left_operand(ws["mixed"][head * rows : (head + 1) * rows, :])
        values.append(product(k, layer.attention, f"mla_value_{head}", left)[:SUBLANES])
    joined = side_by_side(values)
    gate = jax.nn.sigmoid(ws["mla_gates"][:SUBLANES, : joined.shape[1]])
    ws["attended"][...] = left_operand(joined * gate, ws["attended"].shape[1])
    product_into(k, layer.attention, "mla_out", ws["attended"], ws["partial"])
    reduce_scatter(k, "attention_scatter", ws["partial"])
