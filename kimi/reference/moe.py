"""The feed-forward half of a layer: dense MLP, router, and latent mixture of experts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from kimi.activation import situ
from kimi.config import ModelConfig
from kimi.reference.numerics import F32, GatedMlp, Linear, Precision, RMSNorm, matmul, product


def situ_mlp(config: ModelConfig, width: int, precision: Precision, rngs: nnx.Rngs) -> GatedMlp:
    """The dense layers' MLP, and the shared experts as one MLP."""
    return GatedMlp(config.hidden_size, width, _situ(config), precision, rngs)


def _situ(config: ModelConfig) -> Callable[[Array, Array], Array]:
    betas = config.activation_situ_beta, config.activation_situ_linear_beta
    return lambda gate, up: situ(gate, up, *betas)


class Router(nnx.Module):
    """`block_sparse_moe.gate`: which experts a token goes to, and with what weight."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        scale = config.hidden_size**-0.5
        shape = (config.num_experts, config.hidden_size)
        self.weight = nnx.Param(scale * jax.random.normal(rngs.params(), shape))
        self.e_score_correction_bias = nnx.Param(jnp.zeros(config.num_experts))
        self.top_k = config.num_experts_per_token
        self.scaling = config.routed_scaling_factor

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """x [T, D] -> expert ids [T, k] int32, weights [T, k] float32.

        Scores are float32 sigmoids. The correction bias takes part in the choice only; the weights
        are the unbiased scores over their sum, times `routed_scaling_factor`. Ties go to the lower
        id. The latent RMSNorm hides a wrong scale downstream: test the weights here.
        """
        scores = jax.nn.sigmoid(matmul(x.astype(F32), self.weight[...], F32))
        biased = scores + lax.stop_gradient(self.e_score_correction_bias[...].astype(F32))
        _, ids = lax.top_k(biased, self.top_k)
        chosen = jnp.take_along_axis(scores, ids, -1)
        weights = chosen / (chosen.sum(-1, keepdims=True) + 1e-20)
        return ids.astype(jnp.int32), weights * self.scaling


class Experts(nnx.Module):
    """All routed experts of a layer, stacked: w1 (gate), w3 (up) [E, F, D], w2 (down) [E, D, F].

    D is the latent width `routed_expert_hidden_size`.
    """

    def __init__(self, config: ModelConfig, precision: Precision, rngs: nnx.Rngs):
        latent, width = config.routed_expert_hidden_size, config.moe_intermediate_size

        def stack(size_out: int, size_in: int) -> nnx.Param:
            shape = (config.num_experts, size_out, size_in)
            return nnx.Param(size_in**-0.5 * jax.random.normal(rngs.params(), shape))

        self.w1, self.w3, self.w2 = stack(width, latent), stack(width, latent), stack(latent, width)
        self.activation = _situ(config)
        self.num_experts = config.num_experts
        self.precision = precision

    def __call__(self, z: Array, ids: Array, weights: Array) -> Array:
        """sum over k of weights[t, k] * expert ids[t, k] (z[t]); [T, D], summed in float32."""
        run = self.gathered if ids.size < self.num_experts else self.dense
        return run(z, ids, weights).astype(z.dtype)

    def gathered(self, z: Array, ids: Array, weights: Array) -> Array:
        """Reads only the chosen experts: for a few tokens."""
        w1, w3, w2 = (w[...][ids] for w in (self.w1, self.w3, self.w2))  # [T, k, out, in]
        gate, up = (self._product("td,tkfd->tkf", z, w) for w in (w1, w3))
        act = self.activation(gate, up).astype(F32)
        return jnp.einsum("tk,tkd->td", weights, self._product("tkf,tkdf->tkd", act, w2))

    def dense(self, z: Array, ids: Array, weights: Array) -> Array:
        """Runs every expert on every token, with weight 0 where it was not chosen."""
        hot = jax.nn.one_hot(ids, self.num_experts, dtype=F32)
        by_expert = jnp.einsum("tk,tke->te", weights, hot)
        gate, up = (self._product("td,efd->tef", z, w[...]) for w in (self.w1, self.w3))
        weighted = self.activation(gate, up).astype(F32) * by_expert[..., None]
        return self._product("tef,edf->td", weighted, self.w2[...])

    def _product(self, spec: str, x: Array, w: Array) -> Array:
        """An einsum with float32 sums, in x's dtype."""
        return product(spec, x, w, self.precision.matmul).astype(x.dtype)


class LatentMoe(nnx.Module):
    """`block_sparse_moe`: routed experts in a latent space, shared experts on the full width."""

    def __init__(self, config: ModelConfig, precision: Precision, rngs: nnx.Rngs):
        hidden, latent = config.hidden_size, config.routed_expert_hidden_size
        self.gate = Router(config, rngs)
        self.experts = Experts(config, precision, rngs)
        self.routed_expert_down_proj = Linear(hidden, latent, precision, rngs)
        self.routed_expert_norm = RMSNorm(latent, config.rms_norm_eps)
        self.routed_expert_up_proj = Linear(latent, hidden, precision, rngs, 0.3)
        self.shared_experts = situ_mlp(config, config.shared_intermediate_size, precision, rngs)

    def __call__(self, x: Array) -> Array:
        """x [T, D] -> [T, D]. The router sees x itself, the experts its latent projection."""
        ids, weights = self.gate(x)
        y = self.experts(self.routed_expert_down_proj(x), ids, weights)
        return self.routed_expert_up_proj(self.routed_expert_norm(y)) + self.shared_experts(x)
