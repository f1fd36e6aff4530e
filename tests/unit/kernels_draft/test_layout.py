"""The drafter's tensors to rank arrays and back: nothing lost, nothing misplaced."""

import dataclasses

import numpy as np
import pytest

from kimi.assets import TINY_K3
from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.errors import CheckpointError, ConfigError
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.errors import LayoutError
from kimi.kernels.mesh import Mesh
from tests.packing.draft import unpack
from tests.unit.kernels.test_layout import bits
from tests.unit.kernels_draft.build import draft_32, published_draft, random_drafter


def assert_round_trip(layout, tensors):
    ranks = [layout.pack(tensors, rank) for rank in range(layout.mesh.ranks)]
    for arrays in ranks:
        for name, shape in layout.shapes.items():
            assert getattr(arrays, name).shape == shape, name
    found = unpack(layout, ranks)
    for name, value in tensors.items():
        assert found[name].shape == value.shape, name
        np.testing.assert_array_equal(bits(found.pop(name)), bits(value), name)
    assert not found


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_small_drafter_comes_back_bit_by_bit(ranks, tiny):
    """With 8 ranks two of them share each head of keys and values."""
    drafter = DraftCheckpoint.open(TINY_K3 / "dspark")
    layout = DraftLayout(drafter.config, tiny.config, Mesh(ranks))
    assert_round_trip(layout, dict(drafter))


@pytest.mark.parametrize("ranks", [1, 16, 32])
@pytest.mark.parametrize("tile_rows", [0, 256])
def test_a_random_drafter_comes_back_bit_by_bit(ranks, tile_rows):
    """On 32 ranks: three columns of the stream, 66 of the vocabulary, a quarter of a key head."""
    config, target = draft_32()
    layout = DraftLayout(config, target, Mesh(ranks), tile_rows)
    assert_round_trip(layout, random_drafter(config))


def test_embedding_and_head_of_the_target_stand_in(tiny):
    drafter, target = dict(DraftCheckpoint.open(TINY_K3 / "dspark")), Checkpoint.open(TINY_K3)
    config = DraftCheckpoint.open(TINY_K3 / "dspark").config
    own = {n: v for n, v in drafter.items() if n not in ("embed_tokens.weight", "lm_head.weight")}
    layout = DraftLayout(config, tiny.config, Mesh(2))
    found = unpack(layout, [layout.pack(own, rank, target) for rank in range(2)])
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        actual = found[name.removeprefix("model.")]
        np.testing.assert_array_equal(bits(actual), bits(target[name]), name)
    with pytest.raises(CheckpointError, match="lm_head.weight: missing in the checkpoint"):
        layout.pack(own, 0)


def test_shapes_of_the_published_drafter():
    """By hand: 8.75, 14.0 and 40 tiles of a panel; half a head of keys and values, held twice."""
    config, target = published_draft()
    layout = DraftLayout(config, target, Mesh(32))
    assert (layout.fuse_stream.tiles, layout.head_stream.tiles) == (9, 40)
    assert layout.shapes == {
        "dense": (9 + 5 * layout.layer_stream.tiles + 40, 3584, 128),
        "vectors": (6, 176, 128),
        "embedding": (163840, 128),
        "markov_in": (5120, 128),
        "markov_out": (40 * 128, 128),
    }
    assert layout.layer_stream.tiles == 15
    assert [layout.key_heads(rank) for rank in (0, 1, 2, 31)] == [(0, 1), (0, 1), (1, 2), (15, 16)]
    assert 0.30e9 < layout.nbytes < 0.33e9


@pytest.mark.parametrize(
    "field, value, ranks",
    [("num_attention_heads", 8, 16), ("intermediate_size", 36, 8), ("num_key_value_heads", 3, 4)],
)
def test_what_cannot_be_divided_is_named(field, value, ranks):
    config, target = draft_32()
    broken = dataclasses.replace(config, **{field: value})
    with pytest.raises(LayoutError, match=f"draft layout: {field}: expected .*found {value}"):
        DraftLayout(broken, target, Mesh(ranks))


def test_a_drafter_of_another_model_is_refused():
    config, target = draft_32()
    with pytest.raises(ConfigError, match="vocab_size: expected the target's 2112, found 4224"):
        DraftLayout(dataclasses.replace(config, vocab_size=4224), target, Mesh(1))


@pytest.mark.parametrize("rows", [128, 300])
def test_tiles_that_cannot_be_are_refused(rows):
    with pytest.raises(LayoutError, match=f"tile_rows: expected a multiple of 8 .* found {rows}"):
        DraftLayout(*draft_32(), Mesh(1), tile_rows=rows)
