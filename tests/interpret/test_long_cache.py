"""Attention over many tiles of the cache against attention over a single one."""

import numpy as np
import pytest

from tests.interpret.session import Session
from tests.interpret.small import small_config, small_tensors
from tests.tolerances import CACHE_TILES

TOKENS = (5, 12, 700, 5)
MANY, ONE = 128, 1024  # positions of a tile


def step(rows, lengths, positions, slots, seed=0):
    """All logits of a step behind a random past."""
    config = small_config()
    session = Session(
        config, small_tensors(config), rows=rows, sequences=len(lengths), context=ONE,
        cache_positions=positions, cache_slots=slots,
    )  # fmt: skip
    session.remember(lengths, seed)
    return session.step(TOKENS[:rows])[2]


@pytest.mark.parametrize("rows, lengths, slots", [(1, [700], 2), (4, [766], 3), (2, [700, 100], 2)])
def test_many_tiles(rows, lengths, slots):
    """With as few tiles in flight as there can be, and one more; dead positions are NaN."""
    expected = step(rows, lengths, ONE, slots)
    scale = np.abs(expected).max()
    found = step(rows, lengths, MANY, slots)
    np.testing.assert_allclose(found, expected, atol=CACHE_TILES * scale)


def test_the_past_matters():
    """Else the test above would see nothing."""
    one, other = (step(1, [700], ONE, 2, seed) for seed in range(2))
    assert np.abs(other - one).max() > 20 * CACHE_TILES * np.abs(one).max()
