"""All layers over a chunk of tokens, on one rank; to be used inside `shard_map` over `AXIS`.

A layer of a chunk of T tokens on R ranks, with what crosses between them:

    attn_res, norm    [T / R, D]    then all-gather: bfloat16 [T, D]
    attention         [T, D] -> partial sums [T, D], then all-to-all and sum: [T / R, D]
    attn_res, norm    [T / R, D]    then all-gather
    router, latents   columns of [T, E] to their tokens; columns of [T, latent] to all ranks
    experts           pairs of the rank's experts -> partial sums [T, latent], to tokens; norm;
                      all-gather
    up, shared MLP    columns of [T, D] and partial sums [T, D], to tokens
"""

from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from kimi.kernels.layer_table import Column, layer_table
from kimi.kernels.layout import LayerKind, Weights
from kimi.kernels.vectors import offsets
from kimi.prefill import kda, mla, moe
from kimi.prefill.layer import Layer, OnRank, Span
from kimi.prefill.matrices import left
from kimi.prefill.mixing import Vectors, attn_res_norm
from kimi.prefill.pairs import F32, unpack_bf16

# Named scopes of the choices by kind of layer: (KDA, MLA), and (MLP, experts).
ATTENTION, FEED_FORWARD = "attention", "feed_forward"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carry:
    """What goes from layer to layer.

    Attributes:
      stream: float32 [T / R, D], the running residual stream of the rank's tokens.
      residuals: float32 [N, T / R, D], earlier streams, zeros behind the last.
      taps: float32 [taps, T / R, D], for the drafter.
      kda: float32 [KDA layers, rows, 128].
      cache: uint32 [MLA layers, blocks, words, 128].
    """

    stream: Array
    residuals: Array
    taps: Array
    kda: Array
    cache: Array


@dataclass(frozen=True)
class Chunk(OnRank):
    """A chunk through the target; the plan is that of a block of one sequence."""

    @cached_property
    def _table(self) -> npt.NDArray[np.int32]:
        return layer_table(self.plan).reshape(-1, len(Column))

    def run(
        self,
        weights: Weights,
        kda: Array,
        cache: Array,
        num_accepted: Array,
        tokens: Array,
        span: Span,
    ) -> tuple[Array, Array, Array]:
        """Consumes the valid ones of tokens [T] int32, a multiple of 128 and of the ranks.

        Args:
          kda: float32 [KDA layers, rows, 128], of which `num_accepted` rows were accepted.
          cache: uint32 [MLA layers, blocks, words, 128].

        Returns: both behind the tokens, no row accepted; the taps float32 [taps, T / R, D].
        """
        c, settings = self.config, self.plan.settings
        stream = self._embed(weights, tokens)
        entries = -(-c.num_hidden_layers // c.attn_res_block_size)
        residuals = jnp.zeros((entries, *stream.shape), F32)
        taps = jnp.zeros((len(settings.taps), *stream.shape), F32)
        carry = Carry(stream, residuals, taps, kda, cache)
        count = c.num_hidden_layers

        def body(index: Array, carry: Carry) -> Carry:
            return self._layer(weights, index, num_accepted, span, carry)

        carry = lax.fori_loop(0, count, body, carry)
        taps = carry.taps
        if count in settings.taps:
            taps = taps.at[settings.taps.index(count)].set(carry.stream)
        return carry.kda, carry.cache, taps

    def _embed(self, weights: Weights, tokens: Array) -> Array:
        with jax.named_scope("embedding"):
            words = jnp.take(weights.embedding, tokens, 0)
            own = unpack_bf16(words, self.plan.layout.mesh.local(self.config.hidden_size))
            return self.collectives.own_tokens(own).astype(F32)

    def _layer(
        self, weights: Weights, index: Array, num_accepted: Array, span: Span, carry: Carry
    ) -> Carry:
        eps, row = self.config.rms_norm_eps, jnp.asarray(self._table)[index]
        sparse = index >= self.config.first_k_dense_replace
        vectors = self._aligned(weights.vectors[index], sparse)
        layers = {
            kind: Layer(self.plan, self.interpret, kind, row, weights.dense, own, span)
            for kind, own in vectors.items()
        }
        layer = next(iter(layers.values()))
        mixes = Vectors(layer.vectors.table, weights.vectors[index])  # of all kinds in one place
        starts, count = layer[Column.STARTS_BLOCK], layer[Column.RESIDUALS]
        stream, number = carry.stream, jnp.arange(carry.taps.shape[0]) + 1
        taps = jnp.where((number == layer[Column.TAP])[:, None, None], stream, carry.taps)
        names = ("attention_res", "attention_norm")
        seen = attn_res_norm(mixes, *names, carry.residuals, count - starts, stream, eps)
        x = self.collectives.gather_tokens(left(seen))
        partial, carry = self._attend(
            {k.mla: own for k, own in layers.items()}, x, num_accepted, carry
        )
        out = self.collectives.sum_tokens(partial)
        joins = (jnp.arange(len(carry.residuals)) == count - 1) & (starts > 0)
        residuals = jnp.where(joins[:, None, None], stream, carry.residuals)
        stream = jnp.where(starts > 0, out, stream + out)
        seen = attn_res_norm(mixes, "mlp_res", "mlp_norm", residuals, count, stream, eps)
        x = self.collectives.gather_tokens(left(seen))
        feed_forward = {k.moe: own for k, own in layers.items()}
        added = self._feed_forward(feed_forward, weights, x, sparse)
        return replace(carry, stream=stream + added, residuals=residuals, taps=taps)

    def _aligned(self, rows: Array, sparse: Array) -> dict[LayerKind, Vectors]:
        """The small tensors of a layer as any kind of layer has them.

        Those of the attention lie behind those of the feed-forward part: where both kinds of the
        latter occur with one attention, rows of a layer are moved to where the last kind has them.
        """
        layout = self.plan.layout
        tables = {k: layout.layer_vectors(i, 0) for k, i in layout.layer_of_kind.items()}
        found = {}
        for kind, table in tables.items():
            own, last = rows, table[-1].name
            for other, theirs in tables.items():
                if other.mla == kind.mla and other.moe != kind.moe:
                    further = offsets(table)[last] - offsets(theirs)[last]
                    own = jnp.where(sparse == kind.moe, rows, jnp.roll(rows, further, 0))
            found[kind] = Vectors(table, own)
        return found

    def _feed_forward(
        self, layers: dict[bool, Layer], weights: Weights, x: Array, sparse: Array
    ) -> Array:
        """The feed-forward part of the layer's kind, [T / R, D]."""

        def of_experts() -> Array:
            return moe.sparse(layers[True], x, weights.experts)

        def of_mlp() -> Array:
            return moe.mlp(layers[False], "dense", x)

        if len(layers) == 1:
            return of_experts() if True in layers else of_mlp()
        with jax.named_scope(FEED_FORWARD):
            return lax.cond(sparse, of_experts, of_mlp)

    def _attend(
        self, layers: dict[bool, Layer], x: Array, num_accepted: Array, carry: Carry
    ) -> tuple[Array, Carry]:
        """The attention of the layer's kind: partial sums [T, D], and the carry with its state.

        Branches return what is small, and the other kind's as it was: the caches stay in place.
        """
        layer = next(iter(layers.values()))
        state = layer[Column.STATE]
        # The position among layers of the other kind is never used.
        record = lax.dynamic_index_in_dim(carry.kda, state, 0, False)
        at = (state, mla.first_block(layer, x.shape[0]), 0, 0)
        blocks = (1, mla.region_blocks(x.shape[0]), *carry.cache.shape[2:])
        region = lax.dynamic_slice(carry.cache, at, blocks)[0]

        @jax.named_scope("KDA")
        def of_kda() -> tuple[Array, Array, Array]:
            return *kda.attend(layers[False], x, record, num_accepted), region

        @jax.named_scope("MLA")
        def of_mla() -> tuple[Array, Array, Array]:
            partial, new = mla.attend(layers[True], x, carry.cache, region)
            return partial, record, new

        def with_record(record: Array) -> Array:
            return lax.dynamic_update_index_in_dim(carry.kda, record, state, 0)

        def with_region(region: Array) -> Array:
            return lax.dynamic_update_slice(carry.cache, region[None], at)

        # A state that no layer here has is not written at all: the compiler would copy it whole.
        if True not in layers:
            partial, record, _ = of_kda()
            return partial, replace(carry, kda=with_record(record))
        if False not in layers:
            partial, _, region = of_mla()
            return partial, replace(carry, cache=with_region(region))
        with jax.named_scope(ATTENTION):
            partial, record, region = lax.cond(layer[Column.MLA] > 0, of_mla, of_kda)
        return partial, replace(carry, kda=with_record(record), cache=with_region(region))
