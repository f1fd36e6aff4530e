"""One layer: attention over context and block, and the MLP."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.collectives import receive, reduce_scatter, sum_and_send
from kimi.kernels.context import left_operand, unit_rms
from kimi.kernels.draft.phases import STORES
from kimi.kernels.draft.program.frame import cache_load
from kimi.kernels.draft.running import DraftKernel, DraftLayer
from kimi.kernels.ops import attn_res
from kimi.kernels.ops import mla as ops
from kimi.kernels.ops.lanes import BF16, F32, U32, iota, side_by_side
from kimi.kernels.refs import Copy, Scalar
from kimi.kernels.streaming import product_into

_BLOCK_BITS = LANES.bit_length() - 1
_CHUNK_BLOCKS = 16  # of the context, attended at a time


def _norm(k: DraftKernel, layer: DraftLayer, name: str) -> Array:
    """The normed stream, float32 [8, D] that holds bfloat16 values."""
    normed = attn_res.rms_norm(k.ws["stream"][...], layer.vector(name), k.config.rms_norm_eps)
    return normed.astype(F32)


def attention_norm(k: DraftKernel, layer: DraftLayer) -> None:
    """Block rows above committed rows: one product gives keys and values of both."""
    rows = jnp.concatenate([_norm(k, layer, "attention_norm"), k.ws["committed_rows"][...]], 0)
    k.ws["normed"][...] = rows.astype(BF16)


def project(k: DraftKernel, layer: DraftLayer) -> None:
    """Queries, keys and values."""
    product_into(k, layer.tiles, "project", k.ws["normed"], k.ws["projected"])


def _head(k: DraftKernel, first: int, index: int) -> Array:
    """A head of the projections whose columns begin at `first`, float32 [16, K]."""
    width = k.config.head_dim
    start = first + index * width
    return k.ws["projected"][:, start : start + width]


def _rotated(k: DraftKernel, layer: DraftLayer, x: Array, norm: str) -> Array:
    """Normed and rotated, half-split; rows as in `angles`."""
    half, rows = x.shape[1] // 2, x.shape[0]
    x = unit_rms(x, k.config.rms_norm_eps) * layer.row(norm, x.shape[1])
    cos, sin = (k.ws["angles"][i, :rows, :half] for i in range(2))
    a, b = x[:, :half], x[:, half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], 1)


def attend(k: DraftKernel, layer: DraftLayer) -> None:
    """Committed rows join the context; the block's rows attend to it and to each other."""
    plan = k.plan
    heads, own, width = plan.layout.heads, plan.layout.local_key_heads, k.config.head_dim
    keys = [_rotated(k, layer, _head(k, heads * width, i), "key_norm") for i in range(own)]
    values = [_head(k, (heads + own) * width, i) for i in range(own)]
    pairs = [x for pair in zip(keys, values, strict=True) for x in pair]
    new = side_by_side(pairs)
    cache_load(k, layer.index).wait()
    _insert(k, layer, new[SUBLANES:])
    for copy in cache_store(k, layer.index):
        copy.start()
    block = ops.insert_rows(jnp.zeros((plan.cache.words, LANES), U32), new[:SUBLANES], 0)
    mixed: list[Array] = []
    for head in range(own):
        mixed += _attend_head(k, layer, head, block)
    k.ws["attended"][...] = left_operand(side_by_side(mixed), k.ws["attended"].shape[1])


def _open_blocks(k: DraftKernel) -> tuple[tuple[Scalar, Scalar], ...]:
    """Blocks that committed rows belong into, each with the lane of the first one."""
    context = k.plan.cache
    slot = lax.rem(k.step.length, jnp.int32(context.slots))
    block, lane = slot >> _BLOCK_BITS, slot & (LANES - 1)
    second = jnp.where(block + 1 == context.blocks, 0, block + 1)
    found = ((block, lane), (second, lane - LANES))
    assert len(found) == STORES
    return found


def _insert(k: DraftKernel, layer: DraftLayer, new: Array) -> None:
    ref = k.ws["cache"]
    for block, lane in _open_blocks(k):
        words = ref[layer.index, block]
        ref[layer.index, block] = ops.insert_rows(words, new, lane, k.step.num_accepted)


def cache_store(k: DraftKernel, layer: Scalar) -> list[Copy]:
    """The blocks that new positions were written into, back to HBM."""
    sem = k.sems.local("cache_store")
    return [
        pltpu.make_async_copy(k.ws["cache"].at[layer, block], k.refs["cache"].at[layer, block], sem)
        for block, _ in _open_blocks(k)
    ]


def _attend_head(k: DraftKernel, layer: DraftLayer, head: int, block: Array) -> list[Array]:
    """The query heads that share a head of keys and values, float32 [8, K] each."""
    c, count = k.config, k.plan.layout.heads // k.plan.layout.local_key_heads
    width, first = c.head_dim, head * c.head_dim
    query = [
        _rotated(k, layer, _head(k, 0, head * count + i)[:SUBLANES], "query_norm")
        for i in range(count)
    ]
    if count % 2:
        query.append(jnp.zeros((SUBLANES, width), F32))
    q = jnp.concatenate(query, 0).astype(BF16)
    partial = ops.start(q.shape[0], width)
    half, scale = width // 2, width**-0.5
    for start in range(0, k.plan.cache.blocks, _CHUNK_BLOCKS):
        blocks = range(start, min(start + _CHUNK_BLOCKS, k.plan.cache.blocks))
        words = [k.ws["cache"][layer.index, i, first : first + width, :] for i in blocks]
        joined = side_by_side(words)
        seen = _visible(k, start * LANES, joined.shape[1])
        partial = _accumulate(partial, q, joined[:half], joined[half:], seen, scale)
    own = block[first : first + width]
    partial = _accumulate(partial, q, own[:half], own[half:], _within(k, q.shape[0]), scale)
    out = ops.finish(partial)
    return [out[i * SUBLANES : (i + 1) * SUBLANES] for i in range(count)]


def _accumulate(
    partial: ops.Partial, q: Array, keys: Array, values: Array, seen: Array, scale: float
) -> ops.Partial:
    """Adds the positions that are seen, [1 or M, P] bool; others may hold anything."""
    shape = (q.shape[0], keys.shape[1])
    scores = jnp.where(jnp.broadcast_to(seen, shape), ops.scores(q, keys, scale), -jnp.inf)
    if seen.shape[0] == 1:  # what no row sees must not be NaN: 0 * NaN is NaN
        values = jnp.where(jnp.broadcast_to(seen, values.shape), values, jnp.zeros_like(values))
    everywhere = jnp.full((q.shape[0], LANES), shape[1], jnp.int32)
    return ops.accumulate(partial, [scores], [values], 0, everywhere)


def _visible(k: DraftKernel, first: int, count: int) -> Array:
    """Which slots from `first` on hold a position within the window, [1, count]."""
    slots, length = k.plan.cache.slots, k.step.position
    age = lax.rem(length - 1, jnp.int32(slots)) - first - iota((1, count), 1)
    age = jnp.where(age < 0, age + slots, age)
    window = k.config.sliding_window or slots
    return age < jnp.minimum(length, window)


def _within(k: DraftKernel, rows: int) -> Array:
    """Which rows of the block (lanes) a query row sees, [rows, 128]."""
    shape = (rows, LANES)
    lane, row = iota(shape, 1), iota(shape, 0) & (SUBLANES - 1)
    return lane <= row if k.config.causal_block else lane < k.config.block_size


def attention_out(k: DraftKernel, layer: DraftLayer) -> None:
    """Partial sums of the output."""
    product_into(k, layer.tiles, "attention_out", k.ws["attended"], k.ws["partial"])
    reduce_scatter(k, "attention_scatter", k.ws["partial"])


def attention_sum(k: DraftKernel, layer: DraftLayer) -> None:
    """This rank's columns of the attention's output."""
    sum_and_send(k, "attention_scatter", "attention_gather")


def _join(k: DraftKernel, name: str) -> None:
    """A sublayer's output is added to the stream."""
    out = receive(k, name)
    k.ws["stream"][...] = k.ws["stream"][...] + out


def mlp_norm(k: DraftKernel, layer: DraftLayer) -> None:
    """What the MLP sees."""
    _join(k, "attention_gather")
    k.ws["normed"][...] = left_operand(_norm(k, layer, "mlp_norm"))


def mlp_in(k: DraftKernel, layer: DraftLayer) -> None:
    """SiLU of the gate, times up."""
    product_into(k, layer.tiles, "mlp_in", k.ws["normed"], k.ws["gate_up"])
    width, both = k.mesh.local(k.config.intermediate_size), k.ws["gate_up"]
    hidden = jax.nn.silu(both[:, :width]) * both[:, width : 2 * width]
    k.ws["hidden"][...] = left_operand(hidden, k.ws["hidden"].shape[1])


def mlp_out(k: DraftKernel, layer: DraftLayer) -> None:
    """Partial sums of the output."""
    product_into(k, layer.tiles, "mlp_out", k.ws["hidden"], k.ws["partial"])
    reduce_scatter(k, "mlp_scatter", k.ws["partial"])


def mlp_sum(k: DraftKernel, layer: DraftLayer) -> None:
    """This rank's columns of the MLP's output."""
    sum_and_send(k, "mlp_scatter", "mlp_gather")


def layer_join(k: DraftKernel, layer: DraftLayer) -> None:
    """The MLP's output is added to the stream."""
    _join(k, "mlp_gather")
