"""Choice of experts, and the tiles of sorted pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.decoding.programs import split
from kimi.prefill.routing import TILE_ROWS, choose, routes, tile_count


def test_choice_as_in_the_reference():
    """The bias chooses and does not weigh; ties go to the lower id."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((9, 24)).astype(np.float32)
    logits[:, 12:] = logits[:, :12]
    bias = np.repeat(rng.standard_normal(2).astype(np.float32), 12)
    bias[12:] = bias[:12]
    ids, weights = choose(jnp.asarray(logits), jnp.asarray(bias), 5, 2.0)
    scores = np.asarray(jax.nn.sigmoid(jnp.asarray(logits)))
    order = np.argsort(-(scores + bias), axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(ids, order)
    chosen = np.take_along_axis(scores, order, 1)
    np.testing.assert_allclose(weights, 2 * chosen / chosen.sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("popular", [False, True])
@pytest.mark.parametrize("tokens", [8, 200])
def test_tiles_hold_every_pair_once(tokens, popular):
    experts, chosen = 6, 3
    rng = np.random.default_rng(tokens)
    local = np.stack([rng.permutation(experts + 4)[:chosen] for _ in range(tokens)])
    local = np.minimum(local, experts)  # several may belong to others
    if popular:
        local[:, 0] = 2
        local[:, 1:] = experts
    weights = rng.random(local.shape).astype(np.float32)
    found = routes(jnp.asarray(local), jnp.asarray(weights), experts)
    assert len(found.expert) == tile_count(tokens * chosen, experts)
    seen, last = [], -1
    for tile in range(len(found.expert)):
        rows, first, expert = (int(x[tile]) for x in (found.rows, found.first, found.expert))
        assert 0 <= rows <= TILE_ROWS
        if rows:
            last = expert
        assert expert == last or last == -1  # nothing new is copied for a tile without rows
        for pair in range(first, first + rows):
            seen.append((expert, int(found.tokens[pair]), float(found.weights[pair])))
    expected = [
        (int(e), t, float(weights[t, i]))
        for t in range(tokens) for i, e in enumerate(local[t]) if e < experts
    ]  # fmt: skip
    assert sorted(seen) == sorted(expected)


def test_no_pair_at_all():
    found = routes(jnp.full((4, 2), 5), jnp.ones((4, 2)), 5)
    assert not found.rows.any() and int(found.tiles) == 0
    assert (np.asarray(found.expert) < 5).all()


def test_chunks_of_a_prompt():
    sizes = (128, 512, 2048)
    assert split(0, sizes) == []
    assert split(1, sizes) == [128] and split(128, sizes) == [128]
    assert split(129, sizes) == [512] and split(2048, sizes) == [2048]
    assert split(2049, sizes) == [2048, 128] and split(5000, sizes) == [2048, 2048, 2048]
