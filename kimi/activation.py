"""The activation of the target's MLPs and experts."""

import jax
import jax.numpy as jnp
from jax import Array


def situ(gate: Array, up: Array, beta: float, linear_beta: float) -> Array:
    """SiTU: beta tanh(gate / beta) sigmoid(gate) * linear_beta tanh(up / linear_beta).

    Computed in float32, cast to gate's dtype. Source: `activation_situ_beta`,
    `activation_situ_linear_beta`. Kernels have a form without divisions, `kernels.ops.experts`.
    """
    g, u = gate.astype(jnp.float32), up.astype(jnp.float32)
    bounded_gate = beta * jnp.tanh(g / beta) * jax.nn.sigmoid(g)
    return (bounded_gate * linear_beta * jnp.tanh(u / linear_beta)).astype(gate.dtype)
