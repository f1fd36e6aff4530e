"""Sampling as whole distributions, from what the product says about single tokens."""

from functools import partial

import jax
import jax.numpy as jnp

from kimi.decoding.drawing import Logits, sample_rows


@jax.jit
def chances(logits, temperature, top_p, top_k=0):
    """The probability of every token, float32 [V], by `sample_rows` of V rows with logits [V]."""
    size = logits.shape[-1]
    return sample_rows(
        Logits(jnp.broadcast_to(logits, (size, size))), jnp.arange(size),
        jax.random.split(jax.random.key(0), size), jnp.full(size, temperature, jnp.float32),
        jnp.full(size, top_p, jnp.float32), jnp.full(size, top_k, jnp.int32),
    ).chance  # fmt: skip


def drawn(logits, drafts, keys, sampling, ranks=1):
    """`sample_rows` of logits [N, V] for one sampling, divided over ranks; the same on all."""
    options = sampling.temperature, sampling.top_p, sampling.top_k
    found = _drawn(logits, drafts, keys, options, ranks)
    return jax.tree.map(lambda x: x[0], found)


@partial(jax.jit, static_argnums=4)
def _drawn(logits, drafts, keys, options, ranks):
    """On every rank, [ranks, N]."""
    count, size = logits.shape
    temperature, top_p, top_k = options

    def run(part, axis):
        return sample_rows(
            Logits(part, axis), drafts, keys, jnp.full(count, temperature, jnp.float32),
            jnp.full(count, top_p, jnp.float32), jnp.full(count, top_k, jnp.int32),
        )  # fmt: skip

    if ranks == 1:
        return jax.tree.map(lambda x: x[None], run(logits, None))
    parts = jnp.swapaxes(logits.reshape(count, ranks, size // ranks), 0, 1)
    return jax.vmap(lambda part: run(part, "ranks"), axis_name="ranks")(parts)
