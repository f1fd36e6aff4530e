"""The context as words: a slot per lane."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from kimi.kernels.draft.cache import DraftCache
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.errors import PlanError
from kimi.kernels.mesh import Mesh
from tests.packing import ring
from tests.unit.kernels_draft.build import draft_32, draft_config, published_draft


def test_positions_come_back_from_their_slots():
    context = DraftCache(layers=2, heads=3, width=16, slots=256)
    rng = np.random.default_rng(0)
    keys, values = (
        rng.standard_normal((2, 200, 3, 16)).astype(ml_dtypes.bfloat16).astype(np.float32)
        for _ in range(2)
    )
    positions = np.arange(100, 300)
    words = ring.pack(context, keys, values, positions)
    assert words.shape == context.shape == (2, 2, 48, 128) and words.dtype == np.uint32
    found = ring.unpack(context, words)
    for actual, expected in zip(found, (keys, values), strict=True):
        np.testing.assert_array_equal(actual[:, positions % 256], expected)
        assert not actual[:, 45:100].any()  # slots that no position lies in


def test_entries_without_a_position_are_left_out():
    context = DraftCache(layers=1, heads=1, width=16, slots=256)
    ones = np.ones((1, 2, 1, 16))
    assert not np.asarray(ring.pack(context, ones, ones, np.array([-1, -1]))).any()


def test_a_word_by_hand():
    """Value channels 2 and 3 of head 1 at position 130: block 1, lane 2, word 16 + 8 + 1."""
    context = DraftCache(layers=1, heads=2, width=16, slots=256)
    keys, values = np.zeros((2, 1, 1, 2, 16), np.float32)
    values[0, 0, 1, 2:4] = 1.0, -2.0
    words = np.array(ring.pack(context, keys, values, np.array([130])))
    assert words[0, 1, 16 + 8 + 1, 2] == 0xC0003F80
    words[0, 1, 16 + 8 + 1, 2] = 0
    assert not words.any()


@pytest.mark.parametrize("window, slots", [(16, 256), (256, 256), (257, 384), (2048, 2048)])
def test_the_ring_holds_the_window(window, slots):
    config = draft_config(window)
    layout = DraftLayout(config, _target(config), Mesh(1))
    assert DraftCache.of(layout, 0).slots == slots


def _target(config):
    _, target = draft_32()
    return dataclasses.replace(
        target, vocab_size=config.vocab_size, hidden_size=config.hidden_size, num_hidden_layers=6
    )


def test_without_a_window_a_capacity_is_needed():
    config = draft_config(None)
    layout = DraftLayout(config, _target(config), Mesh(1))
    assert DraftCache.of(layout, 1000).slots == 1024
    with pytest.raises(PlanError, match="context: expected at least 1, .* found 0"):
        DraftCache.of(layout, 0)


def test_heads_that_do_not_fit_a_register_are_refused():
    config = draft_config(None, head_dim=48)
    layout = DraftLayout(config, _target(config), Mesh(1))
    with pytest.raises(PlanError, match="head_dim: expected a divisor of 128 .* found 48"):
        DraftCache.of(layout, 100)


def test_the_published_context():
    """One head of keys and values a rank: 512 KiB a layer."""
    context = DraftCache.of(DraftLayout(*published_draft(), Mesh(32)), 0)
    assert context.shape == (5, 16, 64, 128)
