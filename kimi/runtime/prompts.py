"""Prompts of a batch: chunks run on one sequence's state, taken out of the batch's and put back."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array, lax

from kimi.decoding.state import DecodeState
from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.layout import Weights
from kimi.kernels.plan import Plan
from kimi.kernels.records import KdaRecord
from kimi.prefill.layer import Span
from kimi.prefill.program import Chunk
from kimi.runtime.model import ModelWeights


@dataclass(frozen=True)
class Place:
    """Where one sequence's KDA records lie among those of a batch.

    Attributes:
      batch: the record of several sequences, or of one whose rows count at once.
      block: the record that chunks work on; of it the recurrent and the conv state mean something.
    """

    batch: KdaRecord
    block: KdaRecord

    @property
    def _conv_rows(self) -> int:
        return self.block.fresh - self.block.conv_state

    def take(self, kda: Array, sequence: Array) -> Array:
        """float32 [layers, rows, 128] of a batch -> the same of `block`."""
        layers, channels = kda.shape[0], self.batch.channels
        state = lax.dynamic_slice_in_dim(kda, sequence * channels, channels, 1)
        own = jnp.zeros((layers, self.block.total, LANES), kda.dtype)
        own = own.at[:, :channels].set(state)
        if self.batch.rows.sequences == 1:
            conv = kda[:, self.batch.conv_state :][:, : self._conv_rows]
        else:
            taps = lax.dynamic_index_in_dim(self._taps(kda), sequence, 3, False)
            conv = jnp.zeros((layers, self._conv_rows // SUBLANES, SUBLANES, LANES))
            # The last rows of a tile are the newest tokens.
            conv = conv.at[:, :, -taps.shape[1] :].set(taps.swapaxes(1, 2))
            conv = conv.reshape(layers, -1, LANES)
        return own.at[:, self.block.conv_state : self.block.fresh].set(conv)

    def put(self, kda: Array, sequence: Array, own: Array) -> Array:
        """The batch's records with those of one sequence replaced."""
        layers, channels = kda.shape[0], self.batch.channels
        state = own[:, :channels]
        kda = lax.dynamic_update_slice_in_dim(kda, state, sequence * channels, 1)
        conv = own[:, self.block.conv_state : self.block.fresh]
        first = self.batch.conv_state
        if self.batch.rows.sequences == 1:
            return kda.at[:, first : first + self._conv_rows].set(conv)
        tiles = conv.reshape(layers, -1, SUBLANES, LANES)
        taps = tiles[:, :, 1 - self.batch.kernel_size :].swapaxes(1, 2)
        new = lax.dynamic_update_index_in_dim(self._taps(kda), taps, sequence, 3)
        return kda.at[:, first : self.batch.total].set(new.reshape(layers, -1, LANES))

    def _taps(self, kda: Array) -> Array:
        """[layers, taps - 1, tiles, sequence, 128], oldest tap first."""
        rows = kda[:, self.batch.conv_state : self.batch.total]
        shape = (
            kda.shape[0],
            self.batch.kernel_size - 1,
            self._conv_rows // SUBLANES,
            SUBLANES,
            LANES,
        )
        return rows.reshape(shape)


@dataclass(frozen=True)
class BatchPrompts:
    """The traced side, on one rank.

    Attributes:
      plan: of the batch.
      block: of one sequence with rollback, whose records chunks can work on.
      interpret: True without a TPU.
    """

    plan: Plan
    block: Plan
    interpret: bool

    def prefill(
        self, weights: ModelWeights, state: DecodeState, sequence: Array, tokens: Array,
        count: Array,
    ) -> DecodeState:  # fmt: skip
        """One sequence consumes the first `count` of tokens [T] int32."""
        own = Weights(*(w[0] for w in weights.target))
        place = Place(self.plan.record, self.block.record)
        caches, start = state.caches, state.positions[sequence]
        kda, cache = caches.kda[0], caches.cache[0]
        record = place.take(kda, sequence)
        latents = lax.dynamic_index_in_dim(cache, sequence, 1, False)
        chunk = Chunk(self.block, self.interpret)
        record, latents, _ = chunk.run(
            own, record, latents, jnp.int32(0), tokens, Span(start, count)
        )
        caches = replace(
            caches,
            kda=place.put(kda, sequence, record)[None],
            cache=lax.dynamic_update_index_in_dim(cache, latents, sequence, 1)[None],
        )
        return replace(state, caches=caches, lengths=state.lengths.at[sequence].set(start + count))
