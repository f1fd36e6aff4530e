"""Sampling as whole distributions, from what the product says about single tokens."""

import jax
import jax.numpy as jnp

from kimi.decoding.drawing import Logits, sample_rows


def distribution(logits, temperature, top_p, top_k=0):
    """The probabilities that tokens are drawn from: float32 [..., V] of logits [..., V]."""
    logits = jnp.asarray(logits, jnp.float32)
    size = logits.shape[-1]

    def row(logits):
        def full(value, dtype):
            return jnp.full(size, value, dtype)

        return sample_rows(
            Logits(jnp.broadcast_to(logits, (size, size))), jnp.arange(size),
            jax.random.split(jax.random.key(0), size), full(temperature, jnp.float32),
            full(top_p, jnp.float32), full(top_k, jnp.int32),
        ).chance  # fmt: skip

    return jax.lax.map(row, logits.reshape(-1, size)).reshape(logits.shape)


def drawn(logits, drafts, keys, sampling, ranks=1):
    """`sample_rows` of logits [N, V] for one sampling, divided over ranks; the same on all."""
    count, size = logits.shape

    def full(value, dtype):
        return jnp.full(count, value, dtype)

    def run(part, axis):
        return sample_rows(
            Logits(part, axis), drafts, keys, full(sampling.temperature, jnp.float32),
            full(sampling.top_p, jnp.float32), full(sampling.top_k, jnp.int32),
        )  # fmt: skip

    if ranks == 1:
        return run(logits, None)
    parts = jnp.swapaxes(logits.reshape(count, ranks, size // ranks), 0, 1)
    found = jax.vmap(lambda part: run(part, "ranks"), axis_name="ranks")(parts)
    assert jax.tree.all(jax.tree.map(lambda x: bool((x == x[0]).all()), found))
    return jax.tree.map(lambda x: x[0], found)
