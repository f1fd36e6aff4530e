"""Kimi K3's text model as plain jax.numpy: the definition that kernels are compared with.

One token's path: embedding; then for each layer: the attention residual of earlier residual streams
and the running one, attention (KDA or MLA), the attention residual again, the MLP (dense or latent
MoE); the output's attention residual, norm, head.
Modules are named after the checkpoint's tensors. Everything here is for one sequence [T]; use
`jax.vmap` for batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from kimi.config import ModelConfig
from kimi.reference.kda import CHUNK, Kda
from kimi.reference.mla import Mla
from kimi.reference.moe import LatentMoe, situ_mlp
from kimi.reference.numerics import F32, Embedding, Linear, Precision, RMSNorm
from kimi.reference.state import ModelState

# (layer, normed input [T, D], the layer's state) -> its output and new state; the kind of state
# follows the kind of layer, which the type checker cannot know.
Attend = Callable[["Layer", Array, Any], tuple[Array, Any]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Output:
    """What a forward pass of T tokens returns.

    Attributes:
      hidden: [T, D] after the final norm; `K3.logits` turns it into [T, vocab].
      prefixes: layers + 1 arrays [T, D]; entry i is the running stream entering 0-based layer i
        (the drafter's taps), the last one the stream after the last layer.
      attn_res: layers + 1 arrays [T, D], attention residuals; entry i is what layer i's attention
        norm sees, the last one what the final norm sees.
      state: after the tokens; from `K3.rows`, after each of them (see `state.rollback`).
    """

    hidden: Array
    prefixes: tuple[Array, ...]
    attn_res: tuple[Array, ...]
    state: ModelState

    def taps(self, ids: tuple[int, ...]) -> Array:
        """The streams entering layers `ids`, concatenated: [T, len(ids) * D]."""
        return jnp.concatenate([self.prefixes[i] for i in ids], -1)


class AttentionResidual(nnx.Module):
    """Block attention residual: a softmax over earlier residual streams picks what a sublayer sees.

    Holds the pair `*_res_norm`, `*_res_proj` of the checkpoint.
    """

    def __init__(self, config: ModelConfig):
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.proj = nnx.Param(jnp.zeros((1, config.hidden_size)))

    def __call__(self, earlier: list[Array], prefix: Array) -> Array:
        """sum_i softmax_i(RMSNorm(v_i) . w) v_i over earlier streams and prefix, each [T, D].

        In float32. The candidates themselves are not normalised. Without earlier streams it is the
        prefix.
        """
        if not earlier:
            return prefix
        v = jnp.stack([*earlier, prefix]).astype(F32)
        weight = self.norm.weight[...].astype(F32) * self.proj[...][0].astype(F32)
        normed = v * lax.rsqrt(jnp.mean(v * v, -1, keepdims=True) + self.norm.eps)
        scores = jnp.einsum("ntd,d->nt", normed, weight, precision="highest")
        return jnp.einsum("nt,ntd->td", jax.nn.softmax(scores, 0), v).astype(prefix.dtype)


class Layer(nnx.Module):
    """One decoder layer."""

    def __init__(self, config: ModelConfig, index: int, precision: Precision, rngs: nnx.Rngs):
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attention_res = AttentionResidual(config)
        self.input_layernorm = RMSNorm(size, eps)
        attention = Mla if config.is_mla(index) else Kda
        self.self_attn: Mla | Kda = attention(config, precision, rngs)
        self.mlp_res = AttentionResidual(config)
        self.post_attention_layernorm = RMSNorm(size, eps)
        if config.is_moe(index):
            self.block_sparse_moe = LatentMoe(config, precision, rngs)
        else:
            self.mlp = situ_mlp(config, config.intermediate_size, precision, rngs)
        self.starts_block = index % config.attn_res_block_size == 0

    def feed_forward(self, x: Array) -> Array:
        """The dense MLP or the mixture of experts, x [T, D]."""
        return self.block_sparse_moe(x) if hasattr(self, "block_sparse_moe") else self.mlp(x)


class K3(nnx.Module):
    """The text model.

    Args:
      config: sizes.
      precision: rounding rule, see `numerics.Precision`.
      rngs: initial weights, for training; see `loading.Template` for others.
    """

    def __init__(self, config: ModelConfig, precision: Precision, rngs: nnx.Rngs):
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, precision, rngs)
        self.layers = nnx.List(
            [Layer(config, i, precision, rngs) for i in range(config.num_hidden_layers)]
        )
        self.output_attn_res = AttentionResidual(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, precision, rngs, 0.3)

    def __call__(self, tokens: Array, state: ModelState, num_valid: Array | None = None) -> Output:
        """Prefill: consumes many tokens in the chunked form.

        Args:
          tokens: [T] int32; any T (rows are padded to a multiple of 16 inside).
          state: before the first token.
          num_valid: [] int32, how many tokens are valid (default T): the rest is padding and leaves
            no trace in the state.
        """
        count = tokens.shape[0]
        num_valid = jnp.asarray(count if num_valid is None else num_valid, jnp.int32)
        padded = jnp.pad(tokens, (0, -count % CHUNK))

        def attend(layer: Layer, x: Array, before: Any) -> tuple[Array, Any]:
            return layer.self_attn(x, before, state.length, num_valid)

        out = self._forward(padded, state, attend)
        new_state = ModelState(out.state.layers, state.length + num_valid)
        prefixes, attn_res = (tuple(x[:count] for x in xs) for xs in (out.prefixes, out.attn_res))
        return Output(out.hidden[:count], prefixes, attn_res, new_state)

    def rows(self, tokens: Array, state: ModelState) -> Output:
        """A step: consumes R tokens by the recurrence, keeping the state after each of them.

        R = 1 is plain decoding, R > 1 the verification of a drafted block. The output's `state`
        has a leading axis R on KDA states and must go through `state.rollback`.
        """

        def attend(layer: Layer, x: Array, before: Any) -> tuple[Array, Any]:
            return layer.self_attn.rows(x, before, state.length)

        return self._forward(tokens, state, attend)

    def logits(self, hidden: Array) -> Array:
        """[..., D] final-normed -> [..., vocab] float32."""
        return self.lm_head(hidden).astype(F32)

    def _forward(self, tokens: Array, state: ModelState, attend: Attend) -> Output:
        prefix = self.embed_tokens(tokens)
        earlier: list[Array] = []
        prefixes, attn_res, states = [prefix], [], []
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            x = layer.self_attention_res(earlier, prefix)
            attn_res.append(x)
            out, new_state = attend(layer, layer.input_layernorm(x), layer_state)
            states.append(new_state)
            if layer.starts_block:  # the stream so far ends, and a new one begins
                earlier.append(prefix)
                prefix = out
            else:
                prefix = prefix + out
            y = layer.mlp_res(earlier, prefix)
            prefix = prefix + layer.feed_forward(layer.post_attention_layernorm(y))
            prefixes.append(prefix)
        attn_res.append(self.output_attn_res(earlier, prefix))
        new_state = ModelState(tuple(states), state.length)
        return Output(self.norm(attn_res[-1]), tuple(prefixes), tuple(attn_res), new_state)
