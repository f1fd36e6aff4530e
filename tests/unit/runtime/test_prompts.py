"""One sequence's records among those of a batch."""

import jax.numpy as jnp
import numpy as np
import pytest

from kimi.kernels.layout import Layout
from kimi.kernels.mesh import default_mesh
from kimi.kernels.records import KdaRecord, Rows
from kimi.runtime.prompts import Place
from tests.unit.kernels.build import small_32

LAYERS = 2


def place(sequences):
    config = small_32()
    layout = Layout(config, default_mesh(config, 4))
    block = KdaRecord.of(layout, Rows(1, rollback=True))
    return Place(KdaRecord.of(layout, Rows(sequences, sequences)), block)


@pytest.mark.parametrize("sequences", [1, 2, 3, 8])
def test_what_is_taken_and_put_back_is_where_it_was(sequences):
    found = place(sequences)
    kda = np.random.default_rng(0).standard_normal((LAYERS, found.batch.total, 128), np.float32)
    own = found.take(jnp.asarray(kda), jnp.int32(sequences - 1))
    assert own.shape == (LAYERS, found.block.total, 128)
    np.testing.assert_array_equal(found.put(jnp.asarray(kda), jnp.int32(sequences - 1), own), kda)


@pytest.mark.parametrize("sequences", [2, 3, 8])
def test_other_sequences_stay_as_they_were(sequences):
    found = place(sequences)
    zeros = jnp.zeros((LAYERS, found.batch.total, 128))
    ones = jnp.ones((LAYERS, found.block.total, 128))
    kda = np.asarray(found.put(zeros, jnp.int32(1), ones))
    channels, taps = found.batch.channels, found.batch.kernel_size - 1
    memory = kda[:, : found.batch.conv_state]
    assert (memory[:, channels : 2 * channels] == 1).all()
    assert memory.sum() == LAYERS * channels * 128
    tiles = kda[:, found.batch.conv_state :].reshape(LAYERS, taps, -1, 8, 128)
    assert (tiles[:, :, :, 1] == 1).all() and tiles.sum() == (tiles[:, :, :, 1]).sum()


def test_the_newest_token_of_the_history_is_the_last_tap():
    found = place(2)
    own = np.zeros((LAYERS, found.block.total, 128), np.float32)
    tiles = own[:, found.block.conv_state : found.block.fresh].reshape(LAYERS, -1, 8, 128)
    tiles[...] = np.arange(8)[:, None]
    kda = found.put(jnp.zeros((LAYERS, found.batch.total, 128)), jnp.int32(0), jnp.asarray(own))
    taps = np.asarray(kda)[:, found.batch.conv_state :].reshape(
        LAYERS, found.batch.kernel_size - 1, -1, 8, 128
    )
    for i in range(found.batch.kernel_size - 1):
        assert (taps[:, i, :, 0] == 8 - (found.batch.kernel_size - 1) + i).all()
