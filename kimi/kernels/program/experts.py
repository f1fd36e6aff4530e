"""The routed experts of a layer: which are run on which rows, and their blocks as they come.

The list of experts (`ops.router.ListRow`) is in scalar memory. MXFP4 experts run on one or two of
the rows that chose them at a time, FP8 experts on all rows: a work item. Items are a pipeline of
two stages, gate and up of the next one beside down of this one, which hides most of both.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.context import Kernel, Layer, rows_to_tile, stack_rows
from kimi.kernels.experts import CodedMatrix, ExpertFormat
from kimi.kernels.layer_table import Column
from kimi.kernels.ops import experts as ops
from kimi.kernels.ops.lanes import F32, I32, iota, pad_lanes, side_by_side
from kimi.kernels.refs import Copy, Scalar
from kimi.kernels.routing import ListRow


class WorkItem(NamedTuple):
    """An expert on some rows.

    Attributes:
      entry: of the list.
      slot: that holds the expert.
      rows: bits of the rows that chose it and had no item before this one.
    """

    entry: Array
    slot: Array
    rows: Array


def _is_mxfp4(k: Kernel) -> bool:
    return k.plan.layout.expert_format is ExpertFormat.MXFP4


def _rows_at_a_time(k: Kernel) -> int:
    """1 if every expert has one work item; 2 if it may have several."""
    return min(2, k.plan.settings.rows) if _is_mxfp4(k) else 1


def _number(k: Kernel, row: ListRow, entry: Scalar = 0) -> Array:
    return k.ws["expert_list"][row, entry].astype(I32)


def _lowest_bit(bits: Array) -> Array:
    """Number of the lowest bit that is set; -1 if none is."""
    return 31 - lax.clz(bits & -bits)


def _without_lowest(bits: Array) -> Array:
    return bits & (bits - 1)


def _rows_left(k: Kernel, item: WorkItem) -> Array:
    """Bits of the rows that have no work item yet after this one."""
    if _rows_at_a_time(k) == 1:
        return jnp.zeros((), I32)
    return _without_lowest(_without_lowest(item.rows))


def _next_item(k: Kernel, item: WorkItem) -> WorkItem:
    """Must exist."""
    left, slots = _rows_left(k, item), k.plan.settings.expert_slots
    stays = left != 0
    slot = jnp.where(item.slot + 1 == slots, 0, item.slot + 1)
    entry = jnp.where(stays, item.entry, item.entry + 1)
    rows = jnp.where(stays, left, _number(k, ListRow.ROWS, entry))
    return WorkItem(entry, jnp.where(stays, item.slot, slot), rows)


def _copy(k: Kernel, layer: Layer, entry: Scalar, slot: Scalar) -> Copy:
    expert = k.mesh.local_expert(_number(k, ListRow.EXPERT, entry))
    source = k.refs["experts"].at[layer[Column.EXPERT] + expert]
    sem = k.sems.local("expert_load")
    return pltpu.make_async_copy(source, k.ws["experts"].at[slot], sem.at[slot])


def start_experts(k: Kernel, layer: Layer) -> None:
    """Requests the first experts, as many as there are slots."""

    def start(entry: Array, _: None) -> None:
        _copy(k, layer, entry, entry).start()

    count = _number(k, ListRow.EXPERTS)
    lax.fori_loop(0, jnp.minimum(count, k.plan.settings.expert_slots), start, None)


def _when(k: Kernel, condition: Array, do: Callable[[], None]) -> None:
    """`do`, if the condition holds or every work item is an expert of its own."""
    if _rows_at_a_time(k) == 1:
        do()
    else:
        pl.when(condition)(do)


def _await(k: Kernel, layer: Layer, item: WorkItem) -> None:
    """Waits for the expert of an item, if it is its first one."""
    all_rows = _number(k, ListRow.ROWS, item.entry)
    _when(k, item.rows == all_rows, lambda: _copy(k, layer, 0, item.slot).wait())


def _release(k: Kernel, layer: Layer, item: WorkItem) -> None:
    """Requests another expert into the slot of an item, if this was the last one with it."""
    following = item.entry + k.plan.settings.expert_slots

    def refill() -> None:
        @pl.when(following < _number(k, ListRow.EXPERTS))
        def _() -> None:
            _copy(k, layer, following, item.slot).start()

    _when(k, _rows_left(k, item) == 0, refill)


def keep_latents(k: Kernel, latent: Array) -> None:
    """Prepares the rows [R, K] float32 as left operands of the experts."""
    width = k.plan.layout.expert_block.gate_up.padded_inputs
    padded = pad_lanes(latent, width, 0.0)
    if not _is_mxfp4(k):
        k.ws["spread"][0] = rows_to_tile(padded)
        return
    spread = ops.spread_groups(padded)
    for row in range(k.plan.settings.rows):
        k.ws["spread"][row] = spread[row * SUBLANES : (row + 1) * SUBLANES]


def _rows_of(k: Kernel, item: WorkItem) -> list[tuple[Scalar, Array]]:
    """Rows of an item, and their weights; a row that is there twice has weight 0 the second
    time."""
    weights = k.ws["expert_list"]
    if _rows_at_a_time(k) == 1:
        return [(0, weights[0, item.entry])]
    rest, first = _without_lowest(item.rows), _lowest_bit(item.rows)
    second = jnp.where(rest != 0, _lowest_bit(rest), first)
    weight = jnp.where(rest != 0, weights[second, item.entry], 0.0)
    return [(first, weights[first, item.entry]), (second, weight)]


def _coded(k: Kernel, form: CodedMatrix, slot: Scalar) -> ops.Coded:
    """A matrix of the expert in a slot."""
    experts = k.ws["experts"]
    words = experts[slot, form.row : form.scale_row, :]
    shape = (form.panels, form.panel_rows, LANES)
    return ops.Coded(words.reshape(shape), experts[slot, form.scale_row : form.stop, :])


def _hidden(k: Kernel, item: WorkItem) -> Array:
    """First stage: gate and up."""
    block, spread = k.plan.layout.expert_block, k.ws["spread"]
    coded = _coded(k, block.gate_up, item.slot)
    if not _is_mxfp4(k):
        return ops.fp8_gate_up(spread[0], coded, block.width, k.betas)
    parts = [spread[row] for row, _ in _rows_of(k, item)]
    return ops.mxfp4_gate_up(side_by_side(parts, 0), coded, block.width, k.betas)


def _add_output(k: Kernel, item: WorkItem, hidden: Array) -> None:
    """Second stage: down; adds the weighted output to the sum."""
    coded, total = _coded(k, k.plan.layout.expert_block.down, item.slot), k.ws["expert_sum"]
    if not _is_mxfp4(k):
        total[0] = total[0] + ops.fp8_down(hidden, coded, _weight_column(k, item.entry))
        return
    rows = _rows_of(k, item)
    out = ops.mxfp4_down(hidden, coded, [weight for _, weight in rows])
    for i, (row, _) in enumerate(rows):
        total[row] = total[row] + out[i * SUBLANES : (i + 1) * SUBLANES]


def _weight_column(k: Kernel, entry: Array) -> Array:
    """All rows' weights of an entry, [8, 1]."""
    weights = k.ws["choice"][:SUBLANES, :]
    return jnp.sum(jnp.where(iota(weights.shape, 1) == entry, weights, 0.0), 1, keepdims=True)


def run_experts(k: Kernel, layer: Layer) -> Array:
    """The weighted sum of this rank's experts, [R, latent] float32: partial over width and groups.

    R is 1 or 8, as in messages.
    """
    total = k.ws["expert_sum"]
    items = _number(k, ListRow.EXPERTS if _rows_at_a_time(k) == 1 else ListRow.PAIRS)
    total[...] = jnp.zeros(total.shape, F32)
    pl.when(items > 0)(lambda: _pipeline(k, layer, items))
    width = k.config.routed_expert_hidden_size
    if not _is_mxfp4(k):
        return total[0][: k.row_tile, :width]
    rows = [ops.fold_groups(total[row])[:, :width] for row in range(total.shape[0])]
    return stack_rows(rows, k.row_tile)


def _pipeline(k: Kernel, layer: Layer, items: Array) -> None:
    """All work items, at least one."""
    keep = k.ws["expert_hidden"]
    first = WorkItem(jnp.int32(0), jnp.int32(0), _number(k, ListRow.ROWS))
    _await(k, layer, first)
    hidden = _hidden(k, first)
    rows, width = hidden.shape
    keep[:rows, :width] = hidden

    def advance(item: WorkItem, steps: int) -> WorkItem:
        """Finishes `steps` items and begins as many."""
        here = [item]
        for _ in range(steps):
            here.append(_next_item(k, here[-1]))
        for following in here[1:]:
            _await(k, layer, following)
        hidden = keep[:rows, :width]
        for this, following in zip(here[:-1], here[1:], strict=True):
            begun = _hidden(k, following)
            _add_output(k, this, hidden)
            hidden = begun
        keep[:rows, :width] = hidden
        for this in here[:-1]:
            _release(k, layer, this)
        return here[-1]

    # Two at a time: a single item leaves the matrix unit waiting for its last results, and four
    # together wait for memory.
    left = items - 1
    item = lax.fori_loop(0, left >> 1, lambda _, item: advance(item, 2), first)
    item = lax.cond((left & 1) > 0, lambda item: advance(item, 1), lambda item: item, item)
    _add_output(k, item, keep[:rows, :width])
