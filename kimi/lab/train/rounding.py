"""What the checkpoint's formats keep of a weight, and gradients straight through that rounding.

Experts are stored as MXFP4, a few small tensors as float32, everything else as bfloat16.
"""

import jax.numpy as jnp
from jax import Array, lax

from kimi.codecs.mxfp4 import GROUP, MIN_SCALE, SCALE_BIAS
from kimi.reference.tensors import EXPERTS, Weights

_FLOAT32 = ("conv1d", "A_log", "dt_bias", "o_norm", "e_score_correction_bias")


def is_expert(name: str) -> bool:
    """Whether a tensor belongs to the routed experts, which are stored as MXFP4."""
    return EXPERTS in name


def is_float32(name: str) -> bool:
    """Whether a tensor is stored as float32."""
    return any(part in name for part in _FLOAT32)


def mxfp4(w: Array) -> Array:
    """The nearest MXFP4 weight of w [..., K] float32, K a multiple of 32; as `mxfp4.encode`."""
    groups = w.reshape(*w.shape[:-1], -1, GROUP)
    mantissa, exponent = jnp.frexp(jnp.abs(groups).max(-1, keepdims=True))
    power = jnp.where(mantissa <= 0.75, exponent - 3, exponent - 2)  # 6 = 0.75 * 2^3
    power = jnp.maximum(power, MIN_SCALE - SCALE_BIAS)
    x = jnp.abs(jnp.ldexp(groups, -power))
    # Codes are 1/2 apart up to 2, 1 apart up to 4, 2 apart up to 6; ties to even, as `round` does.
    halves, ones, twos = jnp.round(x * 2) / 2, jnp.round(x), jnp.round(x / 2) * 2
    nearest = jnp.where(x <= 2, halves, jnp.where(x <= 4, ones, twos))
    return (jnp.sign(groups) * jnp.ldexp(nearest, power)).reshape(w.shape)


def stored(name: str, w: Array) -> Array:
    """The value of `w` after a trip through the checkpoint, float32."""
    if is_expert(name):
        return mxfp4(w)
    return w if is_float32(name) else w.astype(jnp.bfloat16).astype(jnp.float32)


def straight_through(weights: Weights, quantise: Array) -> Weights:
    """Weights as stored, with the gradient of the identity.

    Args:
      weights: float32 masters.
      quantise: [] float32, 1 rounds experts as well, 0 leaves them. May be traced, so that
        switching it on in the middle of a run compiles nothing.
    """

    def one(name: str, w: Array) -> Array:
        share = quantise if is_expert(name) else 1.0
        return w + share * lax.stop_gradient(stored(name, w) - w)

    return {name: one(name, w) for name, w in weights.items()}


def all_stored(weights: Weights) -> Weights:
    """Every weight as the checkpoint keeps it."""
    return {name: stored(name, w) for name, w in weights.items()}
