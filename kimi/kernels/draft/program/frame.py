"""What precedes the layers: the block's rows, and the committed rows that join the context."""

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import SUBLANES
from kimi.kernels.collectives import all_gather, gathered, receive, wait
from kimi.kernels.context import Tiles, left_operand
from kimi.kernels.draft.phases import DISTINCT_TOKENS
from kimi.kernels.draft.running import DraftKernel
from kimi.kernels.ops import attn_res, reduce
from kimi.kernels.ops.lanes import F32, iota, sublane
from kimi.kernels.refs import Copy, Scalar
from kimi.kernels.streaming import embedding_copy, local_copy, product, tile_copy


def _tokens(k: DraftKernel) -> tuple[Array, Array]:
    """The distinct tokens of a block."""
    return k.step.anchor, jnp.int32(k.config.mask_token_id)


def _embedding_copies(k: DraftKernel) -> list[Copy]:
    return [embedding_copy(k, token, i) for i, token in enumerate(_tokens(k))]


def whole_copy(k: DraftKernel, name: str) -> Copy:
    """An input that is copied whole, under its own name."""
    return local_copy(k, name, k.refs[name], k.ws[name])


def cache_load(k: DraftKernel, layer: Scalar) -> Copy:
    """The context of a layer."""
    sem = k.sems.local("cache_load").at[layer]
    return pltpu.make_async_copy(k.refs["cache"].at[layer], k.ws["cache"].at[layer], sem)


def _start_tiles(k: DraftKernel, first: int, stop: int) -> None:
    """A loop, which keeps its place among the other starts: the compiler would move single ones."""

    def start(slot: Array, _: None) -> None:
        tile_copy(k, slot, slot).start()

    lax.fori_loop(first, stop, start, None)


def begin(k: DraftKernel) -> None:
    """Starts all that is needed soon, in that order: HBM serves one after the other."""
    for copy in _embedding_copies(k):
        copy.start()
    whole_copy(k, "taps").start()
    early = min(k.plan.settings.ring_tiles, k.plan.layout.layer_tile)
    _start_tiles(k, 0, early)
    whole_copy(k, "vectors").start()
    for layer in range(k.config.num_hidden_layers):
        cache_load(k, layer).start()
    _start_tiles(k, early, k.plan.settings.ring_tiles)
    whole_copy(k, "markov_in").start()
    whole_copy(k, "markov_out").start()


def embed(k: DraftKernel) -> None:
    """Picks the rows of anchor and mask and sends this rank's columns."""
    for copy in _embedding_copies(k):
        copy.wait()
    rows = [
        sublane(k.ws["embedding_rows"][i], token & (SUBLANES - 1))
        for i, token in enumerate(_tokens(k))
    ]
    assert len(rows) == DISTINCT_TOKENS
    columns = k.mesh.local(k.config.hidden_size)
    all_gather(k, "embed_gather", reduce.unpack_bf16(jnp.concatenate(rows, 0), columns))


def fuse(k: DraftKernel) -> None:
    """This rank's columns of the committed rows: `fc` over all taps."""
    whole_copy(k, "taps").wait()
    width = k.config.hidden_size
    for i in range(k.ws["taps"].shape[0]):
        k.ws["tap_rows"][:, i * width : (i + 1) * width] = left_operand(k.ws["taps"][i])
    tiles = Tiles(k.plan.layout.fuse_stream, 0, 0, False)
    all_gather(k, "fuse_gather", product(k, tiles, "fuse", k.ws["tap_rows"]))


def embedded(k: DraftKernel) -> None:
    """The stream begins with anchor and masks; the angles of all positions."""
    tokens = receive(k, "embed_gather")
    shape = (SUBLANES, tokens.shape[1])
    k.ws["stream"][...] = jnp.where(iota(shape, 0) == 0, tokens[:1], tokens[1:2])
    k.ws["angles"][0], k.ws["angles"][1] = _angles(k)


def _angles(k: DraftKernel) -> tuple[Array, Array]:
    """Cosine and sine [16, 128]: of the block's rows, and below of the committed ones."""
    shape = k.ws["angles"].shape[1:]
    row = iota(shape, 0)
    position = jnp.where(
        row < SUBLANES, k.step.position + row, k.step.length + (row - SUBLANES)
    ).astype(F32)
    angle = position * k.refs["frequencies"][:1, :]
    return jnp.cos(angle), jnp.sin(angle)


def fused(k: DraftKernel) -> None:
    """What the layers make keys and values of; rows that are not committed may be anything."""
    wait(k, "fuse_gather")
    whole_copy(k, "vectors").wait()
    (rows,) = gathered(k, "fuse_gather")
    normed = attn_res.rms_norm(rows, k.frame_vector("committed_norm"), k.config.rms_norm_eps)
    k.ws["committed_rows"][...] = normed.astype(F32)
