"""Greedy choice over tiles and ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.kernels.ops import head

update, pick = jax.jit(head.update), jax.jit(head.pick)


def greedy(logits, tile, stop=None):
    """[R, V] in tiles -> value and id of every row."""
    best = head.start(logits.shape[0])
    for first in range(0, logits.shape[1], tile):
        best = update(
            best, logits[:, first : first + tile], first, logits.shape[1] if stop is None else stop
        )
    return pick(*best)


@pytest.mark.parametrize("tile", [64, 128, 320, 960])
@pytest.mark.parametrize("kind", ["random", "few values", "all equal", "minus infinity"])
def test_first_of_the_largest(tile, kind):
    rng = np.random.default_rng(tile)
    logits = rng.standard_normal((8, 960)).astype(np.float32)
    if kind == "few values":  # equal maxima within and across tiles, on all lanes
        logits = np.round(logits)
    elif kind == "all equal":
        logits[:] = -3.0
    elif kind == "minus infinity":
        logits[:, :900] = -np.inf
    best = greedy(jnp.asarray(logits), tile)
    np.testing.assert_array_equal(best.ids, np.repeat(logits.argmax(1)[:, None], 128, 1))
    np.testing.assert_array_equal(best.value, np.repeat(logits.max(1)[:, None], 128, 1))


def test_padding_never_wins():
    logits = -1.0 - jnp.arange(1024.0).reshape(1, -1).at[0, 1000:].set(-5.0)  # padding logits: 4
    assert greedy(logits, 256).ids[0, 0] == 1000
    assert greedy(logits, 256, 1000).ids[0, 0] == 0


def test_nan_never_wins_and_shows():
    logits = jnp.zeros((2, 256)).at[0].set(jnp.nan).at[1, 3].set(jnp.nan)
    best = greedy(logits, 128)
    assert best.value[0, 0] == -jnp.inf
    assert best.ids[1, 0] == 0 and best.value[1, 0] == 0.0


def test_candidates_of_all_ranks():
    """Equal values on several ranks, whose ids come in any order; ids near the vocabulary's end."""
    value = jnp.asarray([[1.0, 2.0, 2.0, 2.0], [5.0, 4.0, 3.0, 5.0]])
    ids = jnp.asarray([[7, 163839, 163838, 90000], [163837, 1, 2, 163836]], jnp.int32)
    best = pick(value, ids)
    np.testing.assert_array_equal(best.ids[:, 0], [90000, 163836])
    np.testing.assert_array_equal(best.value[:, 0], [2.0, 5.0])
