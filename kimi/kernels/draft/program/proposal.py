"""What follows the layers: the head, and the choice of tokens from left to right.

Row j's logits are its base logits and w2 . w1[token of row j - 1], over the whole vocabulary. Every
rank knows its part of the vocabulary: the rows of w1 and of w2. It sends its best candidate with
that token's row of w1, so that all ranks know, after one collective, the token and what the next
row needs of it. The anchor is sent like a candidate that nobody outbids.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.collectives import all_gather, receive_words
from kimi.kernels.context import Tiles, flat_row, left_operand
from kimi.kernels.draft.phases import TURNS
from kimi.kernels.draft.program.frame import whole_copy
from kimi.kernels.draft.program.layers import cache_store
from kimi.kernels.draft.running import DraftKernel
from kimi.kernels.ops import attn_res, reduce
from kimi.kernels.ops import head as ops
from kimi.kernels.ops.lanes import F32, I32, U32, row_total, spread
from kimi.kernels.refs import Scalar
from kimi.kernels.streaming import block_product, fold


def output_norm(k: DraftKernel) -> None:
    """What the heads see; the hidden row's part of the confidence, with the bias."""
    c = k.config
    normed = attn_res.rms_norm(k.ws["stream"][...], k.frame_vector("output_norm"), c.rms_norm_eps)
    hidden = normed.astype(F32)
    k.ws["normed"][...] = left_operand(hidden)
    weight = flat_row(k.frame_vector("confidence"), c.hidden_size)
    bias = flat_row(k.frame_vector("confidence_bias"), 1)
    k.ws["confidence"][...] = row_total(hidden * weight) + bias


def _share(k: DraftKernel) -> tuple[Scalar, int]:
    """This rank's part of the vocabulary: first id, and how many."""
    count = k.mesh.local(k.config.vocab_size)
    return k.rank * count, count


def head(k: DraftKernel) -> None:
    """Base logits of this rank's part of the vocabulary; meanwhile the anchor's row travels."""
    k.refs["tokens"][...] = jnp.zeros(k.refs["tokens"].shape, I32)
    k.refs["confidence"][...] = jnp.zeros(k.refs["confidence"].shape, F32)
    whole_copy(k, "markov_in").wait()
    _propose_anchor(k)
    layout = k.plan.layout
    tiles = Tiles(
        layout.head_stream, layout.head_tile, layout.head_tile % k.plan.settings.ring_tiles, False
    )

    def store(column: Scalar, part: Array, _: None) -> None:
        columns = pl.ds(pl.multiple_of(jnp.asarray(column), LANES), part.shape[1])
        k.ws["base"][:, columns] = part[:SUBLANES]

    fold(k, tiles, "head", k.ws["normed"], store, None)


def _propose_anchor(k: DraftKernel) -> None:
    start, count = _share(k)
    anchor = k.step.anchor
    owner = (anchor >= start) & (anchor < start + count)
    shape = (1, LANES)
    value = jnp.where(owner, jnp.ones(shape, F32), jnp.zeros(shape, F32))
    _propose(k, TURNS[0], value, jnp.full(shape, anchor, I32), anchor)


def _propose(k: DraftKernel, name: str, value: Array, ids: Array, token: Scalar) -> None:
    """Sends a candidate.

    Args:
      value, ids: [1, 128], its logit and its id, lane-replicated.
      token: the id as a scalar; where the rank does not hold it, any row of w1 will do.
    """
    start, count = _share(k)
    row = jnp.clip(token - start, 0, count - 1)
    words = k.ws["markov_in"][pl.ds(row, 1), :]
    all_gather(k, name, value, jnp.concatenate([pltpu.bitcast(ids, U32), words], 1))


def _settle(k: DraftKernel, name: str) -> tuple[Array, Array]:
    """The best of all candidates: its id [1, 128], lane-replicated, and its row of w1 [1, rank].

    Ranks hold ascending ids: a strict comparison keeps the lowest of equals.
    """
    words = receive_words(k, name)
    best = pltpu.bitcast(words[0][:, :LANES], F32)
    ids = words[0][:, LANES : 2 * LANES]
    winner = jnp.zeros(best.shape, I32)
    for rank in range(1, k.mesh.ranks):
        value = pltpu.bitcast(words[rank][:, :LANES], F32)
        wins = value > best
        best = jnp.where(wins, value, best)
        ids = jnp.where(wins, words[rank][:, LANES : 2 * LANES], ids)
        winner = jnp.where(wins, rank, winner)
    row = words[0][:, 2 * LANES :]
    wide = spread(winner, row.shape[1])
    for rank in range(1, k.mesh.ranks):
        row = jnp.where(wide == rank, words[rank][:, 2 * LANES :], row)
    return pltpu.bitcast(ids, I32), reduce.unpack_bf16(row, k.config.markov_rank)


def _choose_row(k: DraftKernel, row: Scalar, last: str, following: str) -> None:
    """The candidate of a row, once the token before it is known.

    Args:
      row: of the block.
      last, following: collectives that bring the token before, and send this rank's candidate.
    """
    c = k.config
    token, previous = _settle(k, last)
    # The anchor goes where the first token will be.
    k.refs["tokens"][pl.ds(jnp.maximum(row - 1, 0), 1), :] = token
    weight = k.frame_vector("confidence")[c.hidden_size // LANES :]
    odds = k.ws["confidence"][pl.ds(row, 1), :]
    odds = odds + row_total(previous * flat_row(weight, c.markov_rank))
    k.refs["confidence"][pl.ds(row, 1), :] = jax.nn.sigmoid(odds)
    best = _best(k, row, left_operand(previous))
    _propose(k, following, best.value, best.ids, best.ids[0, 0])


def _best(k: DraftKernel, row: Scalar, left: Array) -> ops.Best:
    """The best of this rank's part of the vocabulary, [1, 128] lane-replicated.

    Args:
      left: bfloat16 [16, K], whose first row is the previous token's row of w1.
    """
    stream, (start, count) = k.plan.layout.markov_stream, _share(k)
    matrix = stream.matrix("markov")
    best = ops.start(1)
    for block in stream.blocks:
        correction = block_product(k.ws["markov_out"], block, left)[:1]
        first = LANES * (matrix.panels if block.panels is None else block.panels[0])
        base = k.ws["base"][pl.ds(row, 1), first : first + correction.shape[1]]
        best = ops.update(best, base + correction, start + first, start + count)
    return ops.pick(*best)


def choose(k: DraftKernel) -> None:
    """Row after row; the two collectives take turns."""
    whole_copy(k, "markov_out").wait()
    odd, even = TURNS
    pairs, rest = divmod(k.config.block_size, 2)

    def pair(index: Array, _: None) -> None:
        _choose_row(k, 2 * index, odd, even)
        _choose_row(k, 2 * index + 1, even, odd)

    lax.fori_loop(0, pairs, pair, None)
    if rest:
        _choose_row(k, 2 * pairs, odd, even)


def results(k: DraftKernel) -> None:
    """The last token; what was stored must be in HBM."""
    rows = k.config.block_size
    token, _ = _settle(k, TURNS[rows % 2])
    k.refs["tokens"][rows - 1 : rows, :] = token
    for layer in range(k.config.num_hidden_layers):
        for copy in cache_store(k, layer):
            copy.wait()
