"""Latent attention over a transposed cache against a float64 softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.kernels.ops import mla
from tests.tolerances import OPS_ATTENTION, OPS_MERGE
from tests.unit.kernels_ops.support import bf16, close, f64, replicate, words

ROWS, RANK, WIDTH, TILE = 16, 128, 192, 256
SCALE = WIDTH**-0.5


@jax.jit
def attend(q, tiles, lengths, first, length):
    """Two tiles a step, over all tiles."""
    partial = mla.start(ROWS, RANK)
    for i in range(0, len(tiles), 2):
        at = first + i * TILE
        pair = [mla.valid_words(t, at + j * TILE, length) for j, t in enumerate(tiles[i : i + 2])]
        products = [mla.scores(q, t, SCALE) for t in pair]
        partial = mla.accumulate(partial, products, pair, at, lengths)
    return partial


def definition(q, latent, lengths):
    out = np.zeros((ROWS, RANK))
    for row, n in enumerate(lengths):
        if n:
            score = f64(latent[:n]) @ f64(q[row]) * SCALE
            weight = np.exp(score - score.max())
            out[row] = weight @ f64(latent[:n, :RANK]) / weight.sum()
    return out


def inputs(length, seed=0, gain=1.0):
    """A cache of four tiles that is NaN from `length` on."""
    rng = np.random.default_rng(seed)
    q = bf16(gain * rng.standard_normal((ROWS, WIDTH)))
    latent = bf16(rng.standard_normal((4 * TILE, WIDTH)))
    latent[length:] = np.nan
    tiles = [words(latent[i : i + TILE].T) for i in range(0, len(latent), TILE)]
    return q, latent, tiles


@pytest.mark.parametrize("length", [1, 7, 128, 255, 256, 257, 700, 1024])
@pytest.mark.parametrize("gain", [1.0, 30.0], ids=["soft", "peaked"])
def test_attention(length, gain):
    """Rows see different lengths; dead positions hold NaN and rows that see nothing give zero."""
    q, latent, tiles = inputs(length, length, gain)
    lengths = np.maximum(length - np.arange(ROWS), 0).astype(np.int32)
    lengths[-1] = 0
    partial = attend(jnp.asarray(q, jnp.bfloat16), tiles, replicate(lengths), 0, length)
    close(mla.finish(partial), definition(q, latent, lengths), OPS_ATTENTION)


def test_equal_scores_average():
    """A zero query weighs all live positions alike, over any number of tiles."""
    _, latent, tiles = inputs(1000)
    lengths = replicate(np.full(ROWS, 1000, np.int32))
    partial = attend(jnp.zeros((ROWS, WIDTH), jnp.bfloat16), tiles, lengths, 0, 1000)
    expected = np.broadcast_to(f64(latent[:1000, :RANK]).mean(0), (ROWS, RANK))
    close(mla.finish(partial), expected, OPS_MERGE)
    assert mla.finish(partial).max() > 0


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("position", [-8, -5, -1, 0, 1, 63, 121, 124, 127, 128])
def test_insert_rows(count, position):
    rng = np.random.default_rng(0)
    tile = bf16(rng.standard_normal((WIDTH, 128)))
    tile[:, 64] = np.nan
    new = rng.standard_normal((count, WIDTH)).astype(np.float32)
    expected = tile.copy()
    for j in range(count):
        if 0 <= position + j < 128:
            expected[:, position + j] = bf16(new[j])
    out = jax.jit(mla.insert_rows)(words(tile), jnp.asarray(new), position)
    np.testing.assert_array_equal(out, words(expected))
