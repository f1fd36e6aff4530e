"""Copies from and to HBM, and products with the weights that stream through the ring."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.context import Core, Kernel, Layer, Tiles
from kimi.kernels.layer_table import Column
from kimi.kernels.ops.lanes import BF16, dot, dot_nt, side_by_side
from kimi.kernels.plan import Plan
from kimi.kernels.records import OPEN_SHIFT
from kimi.kernels.refs import Copy, Ref, Scalar, StepInput
from kimi.kernels.stream import Block, Stream

_ROW_BITS = SUBLANES.bit_length() - 1


def local_copy(k: Core, name: str, source: Ref, target: Ref) -> Copy:
    """A load or store of the plan's table, with its semaphore."""
    return pltpu.make_async_copy(source, target, k.sems.local(name))


def tile_copy(k: Core, tile: Scalar, slot: Scalar) -> Copy:
    """A tile of dense weights into a slot of the ring."""
    source, target = k.refs["dense"].at[tile], k.ws["ring"].at[slot]
    return pltpu.make_async_copy(source, target, k.sems.local("tiles").at[slot])


def embedding_copy(k: Core, token: Array, index: int) -> Copy:
    """The eight rows of the embedding around a token: single rows are no unit of HBM."""
    first = pl.multiple_of((token >> _ROW_BITS) << _ROW_BITS, SUBLANES)
    source = k.refs["embedding"].at[pl.ds(first, SUBLANES)]
    return local_copy(k, "embedding", source, k.ws["embedding_rows"].at[index])


def vectors_copy(k: Kernel, layer: Scalar) -> Copy:
    """The vectors of a layer; the number of layers stands for those of the output."""
    source, target = k.refs["vectors"].at[layer], k.ws["vectors"].at[layer & 1]
    return local_copy(k, "vectors", source, target)


def kda_load(k: Kernel, state: Scalar) -> Copy:
    """The record of a KDA layer."""
    return local_copy(k, "kda_load", k.refs["kda"].at[state], k.ws["kda_record"])


def kda_store(k: Kernel, state: Scalar) -> Copy:
    """Its new record."""
    return local_copy(k, "kda_store", k.ws["kda_new_record"], k.refs["kda"].at[state])


def open_blocks(plan: Plan, cache: Ref, step: StepInput, state: Scalar, sequence: int) -> Ref:
    """The blocks of an MLA cache that the rows of a sequence belong into."""
    first = step.length(sequence) >> OPEN_SHIFT
    return cache.at[state, sequence, pl.ds(first, plan.cache.open_blocks)]


def open_loads(k: Kernel, state: Scalar) -> list[Copy]:
    """The open blocks of all sequences."""
    target, sem = k.ws["cache_open"], k.sems.local("open_load")
    return [
        pltpu.make_async_copy(
            open_blocks(k.plan, k.refs["cache"], k.step, state, s), target.at[s], sem
        )
        for s in range(k.plan.rows.sequences)
    ]


def open_store(k: Kernel, state: Scalar) -> Copy:
    """The open blocks of all sequences, with the new rows, to where `cache_append` finds them."""
    return local_copy(k, "open_store", k.ws["cache_new_open"], k.refs["appended"].at[state])


def start_next_state(layer: Layer, start: Callable[[Array], None]) -> None:
    """Calls `start` with the position of the next layer of this kind, if there is one."""
    state = layer[Column.STATE]

    @pl.when(layer[Column.NEXT_STATE] > 0)
    def _() -> None:
        start(state + 1)


def multiply(
    k: Core, tiles: Tiles, name: str, left: Ref, emit: Callable[[int, Array], None]
) -> None:
    """left @ matrix, group by group of columns, as the tiles come.

    Waits for tiles that this matrix is the first to read, and refills the slots of those that it
    is the last to read.

    Args:
      name: of the matrix.
      left: bfloat16 [16, K], a value or a reference; zeros behind the matrix's inputs.
      emit: takes the first column and float32 [16, columns]; columns are padded as in the matrix.
    """
    matrix, total = tiles.stream.matrix(name), None
    for block in tiles.stream.blocks_of(name):
        slot = _slot(k, tiles, block.tile)
        if _is_first(tiles, block):
            tile_copy(k, 0, slot).wait()
        part = block_product(k.ws["ring"].at[slot], block, left)
        total = part if total is None else total + part
        end = matrix.tail_inputs if block.panels is None else matrix.panel_inputs
        if block.inputs[1] == end:
            emit(LANES * (matrix.panels if block.panels is None else block.panels[0]), total)
            total = None
        if _is_last(tiles, block):
            _refill(k, tiles, block.tile, slot)


def fold(
    k: Core,
    tiles: Tiles,
    name: str,
    left: Ref,
    add: Callable[[Scalar, Array, Any], Any],
    carry: Any,
) -> Any:
    """As `multiply` for a matrix of many columns: a loop, where its parts lie alike in their tiles.

    Args:
      add: takes the first column, float32 [16, columns] and the carry; returns the carry.
      carry: arrays, to begin with.

    Returns: the last carry.
    """
    period = tiles.stream.period(name)

    def run(part: Stream, tile: Scalar, slot: Scalar, column: Scalar, carry: Any) -> Any:
        def emit(at: int, values: Array) -> None:
            nonlocal carry
            carry = add(column + at, values, carry)

        multiply(k, replace(tiles, stream=part, tile=tile, slot=slot), name, left, emit)
        return carry

    if period is None:
        return run(tiles.stream, tiles.tile, tiles.slot, 0, carry)

    def body(index: Array, state: tuple[Array, Any]) -> tuple[Array, Any]:
        slot, carry = state
        tile, column = tiles.tile + index * period.tiles, index * period.columns
        carry = run(period.stream, tile, slot, column, carry)
        slot = slot + period.tiles % k.plan.settings.ring_tiles
        return jnp.where(
            slot >= k.plan.settings.ring_tiles, slot - k.plan.settings.ring_tiles, slot
        ), carry

    slot = jnp.asarray(tiles.slot, jnp.int32)
    return lax.fori_loop(0, period.count, body, (slot, carry))[1]


def product(k: Core, tiles: Tiles, name: str, left: Ref) -> Array:
    """left @ matrix as one value, float32 [16, outputs]."""
    parts: list[Array] = []
    multiply(k, tiles, name, left, lambda _, part: parts.append(part))
    return side_by_side(parts)[:, : tiles.stream.matrix(name).outputs]


def product_into(k: Core, tiles: Tiles, name: str, left: Ref, target: Ref) -> None:
    """left @ matrix into a buffer [16, at least outputs], float32."""

    def store(column: int, part: Array) -> None:
        width = min(part.shape[1], target.shape[1] - column)
        target[:, column : column + width] = part[:, :width]

    multiply(k, tiles, name, left, store)


def _slot(k: Core, tiles: Tiles, tile: int) -> Scalar:
    count = k.plan.settings.ring_tiles
    slot = tiles.slot + tile % count
    return jnp.where(slot >= count, slot - count, slot)


def _is_first(tiles: Tiles, block: Block) -> bool:
    if tiles.stream.start_row and block.tile == 0:
        return False  # the stream before has waited for it
    return block == next(b for b in tiles.stream.blocks if b.tile == block.tile)


def _is_last(tiles: Tiles, block: Block) -> bool:
    if tiles.keeps_last and block.tile == tiles.stream.tiles - 1:
        return False
    return block == [b for b in tiles.stream.blocks if b.tile == block.tile][-1]


def _refill(k: Core, tiles: Tiles, tile: int, slot: Scalar) -> None:
    following = tiles.tile + (tile + k.plan.settings.ring_tiles)

    @pl.when(following < k.plan.layout.tiles)
    def _() -> None:
        tile_copy(k, following, slot).start()


def block_product(words: Ref, block: Block, left: Ref) -> Array:
    """The part of a product that one block contributes.

    Args:
      words: u32 [tile rows, 128], the tile with the block.
      left: bfloat16 [16, K].
    """
    start, stop = block.inputs
    panels = block.panels
    count = (stop - start) // LANES if panels is None else panels[1] - panels[0]
    rows = block.rows // count
    parts = [words[block.row + i * rows : block.row + (i + 1) * rows, :] for i in range(count)]
    joined = side_by_side(parts)
    times = dot_nt if panels is None else dot
    return times(left[:, start:stop], pltpu.bitcast(joined, BF16))
