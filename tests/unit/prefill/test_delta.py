"""The delta rule in chunks, against the recurrence token by token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.prefill.delta import CHUNK, Rows
from kimi.prefill.delta import chunked as kernel
from kimi.reference.kda import recurrent
from tests.tolerances import PREFILL_DELTA

HEADS, WIDTH = 2, 32


def rows(tokens, lowest, highest, alike=False, seed=0):
    """Random tokens with log decays between two values; nearly equal keys if asked for."""
    rng = np.random.default_rng(seed)
    shape = (tokens, HEADS, WIDTH)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    if alike:
        k = k[:1] + 0.01 * k
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    g = rng.uniform(lowest, highest, shape).astype(np.float32)
    beta = rng.uniform(0.02, 0.98, shape[:2]).astype(np.float32)
    return Rows(*(jnp.asarray(x) for x in (q, k, v, g, beta)))


@jax.jit
def chunked(given, start):
    """The kernel, with heads as an axis of their own."""
    flat = Rows(*(x.reshape(len(x), -1) for x in given[:4]), given.beta)
    out, end = kernel(flat, start, True)
    return out.reshape(given.v.shape), end


def memory(seed=1):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.standard_normal((HEADS, WIDTH, WIDTH)), jnp.float32)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("decays", [(-5, -4.99), (-5, 0), (-1, 0), (-1e-3, 0), (-1e-6, 0), (0, 0)])
def test_the_whole_range_of_decays(decays, alike):
    given, start = rows(4 * CHUNK, *decays, alike), memory()
    out, end = chunked(given, start)
    expected, states = recurrent(*given, start.swapaxes(1, 2))
    for actual, want in ((out, expected), (end.swapaxes(1, 2), states[-1])):
        assert np.isfinite(actual).all()
        error = np.abs(np.asarray(actual - want)).max()
        assert error <= PREFILL_DELTA * np.abs(want).max(), error


def test_decays_that_change_at_a_border_of_tiles():
    """Sixteen tokens that forget everything, then sixteen that forget nothing, and so on."""
    given = rows(2 * CHUNK, -1e-4, 0)
    steep = (jnp.arange(2 * CHUNK) // 16 % 2 == 0)[:, None, None]
    given = given._replace(g=jnp.where(steep, -5.0, given.g))
    out, end = chunked(given, memory())
    expected, states = recurrent(*given, memory().swapaxes(1, 2))
    assert np.abs(out - expected).max() <= PREFILL_DELTA * np.abs(expected).max()
    assert np.abs(end.swapaxes(1, 2) - states[-1]).max() <= PREFILL_DELTA * np.abs(states[-1]).max()


@pytest.mark.parametrize("live", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1])
def test_dead_tokens_leave_no_trace(live):
    """Bit by bit the same, whatever they hold."""
    ends = []
    for seed in (0, 7):
        given, other = rows(2 * CHUNK, -5, 0), rows(2 * CHUNK, -5, 0, seed=seed)
        alive = jnp.arange(2 * CHUNK) < live
        here = alive[:, None, None]
        mixed = (jnp.where(here, a, b) for a, b in zip(given[:3], other[:3], strict=True))
        g, beta = jnp.where(here, given.g, 0), jnp.where(alive[:, None], given.beta, 0)
        out, end = chunked(Rows(*mixed, g, beta), memory())
        ends.append((np.asarray(out[:live]), np.asarray(end)))
    for one, other in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, other)
    if not live:
        np.testing.assert_array_equal(ends[0][1], memory())
