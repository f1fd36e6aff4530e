"""The feed-forward half of a layer over a chunk: dense MLP, or router and latent experts."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from kimi.activation import situ
from kimi.kernels.layer_table import Column
from kimi.prefill.experts import run_experts
from kimi.prefill.layer import Layer
from kimi.prefill.matrices import left
from kimi.prefill.mixing import rms_norm
from kimi.prefill.routing import choose, routes


@jax.named_scope("MLP")
def mlp(layer: Layer, name: str, x: Array) -> Array:
    """down(SiTU(gate, up)) of the MLP `name`: bfloat16 [T, D] from `matrices.left` -> float32
    [T / R, D], whole sums of the rank's tokens."""
    tiles = layer.feed_forward
    gate, up = jnp.split(tiles.product(f"{name}_in", x), 2, 1)
    partial = tiles.product(f"{name}_out", left(situ(gate, up, *layer.betas)))
    return layer.collectives.sum_tokens(partial)


@jax.named_scope("routed")
def sparse(layer: Layer, x: Array, experts: Array) -> Array:
    """A layer with experts.

    Args:
      x: bfloat16 [T, D] from `matrices.left`.
      experts: uint32 [blocks, rows, 128], all of the rank.

    Returns: float32 [T / R, D].
    """
    c, mesh, collectives = layer.config, layer.plan.layout.mesh, layer.collectives
    routed = layer.feed_forward.product("route", x)
    own = mesh.local(c.routed_expert_hidden_size)
    latent = collectives.gather_columns(routed[:, :own].astype(jnp.bfloat16))
    logits = collectives.own_tokens(routed[:, own:])
    ids, weights = choose(
        logits, layer.vectors["route_bias"], c.num_experts_per_token, c.routed_scaling_factor
    )
    # One collective: weights as bits of integers, which nothing flushes to zero.
    both = jnp.concatenate([ids, lax.bitcast_convert_type(weights, jnp.int32)], 1)
    ids, bits = jnp.split(collectives.gather_tokens(both), 2, 1)
    weights = lax.bitcast_convert_type(bits, jnp.float32)
    mine = mesh.owner(ids) == mesh.expert_group(collectives.rank())
    valid = (jnp.arange(x.shape[0]) < layer.span.count)[:, None]
    count = layer.plan.layout.local_experts
    found = routes(jnp.where(mine & valid, mesh.local_expert(ids), count), weights, count)
    block = layer.plan.layout.expert_block
    partial = run_experts(
        block, layer.betas, found, latent, experts, layer[Column.EXPERT], layer.interpret
    )
    summed = collectives.sum_tokens(partial, rounded=False)
    normed = left(rms_norm(summed, layer.vectors["expert_norm"], c.rms_norm_eps))
    up = layer.feed_forward.product("latent_up", collectives.gather_tokens(normed))
    return collectives.own_rounded(up) + mlp(layer, "shared", x)
