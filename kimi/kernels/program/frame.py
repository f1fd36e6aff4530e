"""What precedes the first layer and what follows the last: embedding, head, choice of a token."""

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.collectives import all_gather, gathered, receive_words, wait
from kimi.kernels.context import Kernel, Layer, Tiles, rows_to_tile, stack_rows
from kimi.kernels.ops import head as ops
from kimi.kernels.ops import reduce
from kimi.kernels.ops.lanes import F32, I32, U32, side_by_side, sublane
from kimi.kernels.program.mixing import freeze_residuals
from kimi.kernels.program.mla import start_cache_tiles
from kimi.kernels.refs import Scalar
from kimi.kernels.streaming import (
    embedding_copy,
    fold,
    kda_load,
    open_loads,
    tile_copy,
    vectors_copy,
)


def begin(k: Kernel, layer: Layer) -> None:
    """Starts everything that the first layers need."""
    for row in range(k.plan.settings.rows):
        embedding_copy(k, k.step.token(row), row).start()
    vectors_copy(k, 0).start()
    for slot in range(k.plan.settings.ring_tiles):
        tile_copy(k, slot, slot).start()
    kda_load(k, 0).start()
    for copy in open_loads(k, 0):
        copy.start()
    start_cache_tiles(k, 0)


def embed(k: Kernel, layer: Layer) -> None:
    """Picks the rows of the tokens and sends them: words of the table are words of a message."""
    columns = k.mesh.local(k.config.hidden_size)
    for row in range(k.plan.settings.rows):
        embedding_copy(k, k.step.token(row), row).wait()
    rows = [
        sublane(k.ws["embedding_rows"][row], k.step.token(row) & (SUBLANES - 1))
        for row in range(k.plan.settings.rows)
    ]
    all_gather(k, "embed_gather", reduce.unpack_bf16(stack_rows(rows, k.row_tile), columns))


def embedded(k: Kernel, layer: Layer) -> None:
    """The stream begins; there are no block residuals."""
    wait(k, "embed_gather")
    vectors_copy(k, 0).wait()
    (stream,) = gathered(k, "embed_gather")
    k.ws["stream"][...] = rows_to_tile(stream)
    k.ws["residuals"][...] = jnp.zeros(k.ws["residuals"].shape, F32)
    k.ws["residual_norms"][...] = jnp.zeros(k.ws["residual_norms"].shape, F32)
    freeze_residuals(k, layer, "attention_res", 0)


def head(k: Kernel, layer: Layer) -> None:
    """The best of this rank's part of the vocabulary."""
    layout, slots = k.plan.layout, k.plan.settings.ring_tiles
    first = layout.first_tiles[-2]
    tiles = Tiles(layout.head_stream, first, first % slots, False)
    share = k.mesh.local(k.config.vocab_size)
    start = k.rank * share

    def update(column: Scalar, logits: Array, best: ops.Best) -> ops.Best:
        rows, results = logits[:SUBLANES], k.refs["logits"]
        width = min(rows.shape[1], results.shape[1])  # a tail is padded
        at = column if isinstance(column, int) else pl.multiple_of(column, LANES)
        results[:, pl.ds(at, width)] = rows[:, :width]
        return ops.update(best, rows, start + column, start + share)

    best = fold(k, tiles, "head", k.ws["normed"], update, ops.start(SUBLANES))
    best = ops.pick(*best)
    ids = pltpu.bitcast(best.ids[:, :1], U32)
    all_gather(k, "token_gather", best.value[:, :1], ids)


def token(k: Kernel, layer: Layer) -> None:
    """The best of all ranks."""
    words = receive_words(k, "token_gather")
    values = [pltpu.bitcast(words[r][:, :1], F32) for r in range(k.mesh.ranks)]
    ids = [pltpu.bitcast(words[r][:, 1:], I32) for r in range(k.mesh.ranks)]
    joined = [side_by_side(x) for x in (values, ids)]
    best = ops.pick(*joined)
    k.refs["best"][...] = rows_to_tile(best.value)
    k.refs["tokens"][...] = rows_to_tile(best.ids)
