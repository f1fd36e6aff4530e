"""Products with tiles, against the matrices that were packed into them."""

import jax.numpy as jnp
import numpy as np
import pytest

from kimi.kernels.layout import Layout
from kimi.kernels.mesh import default_mesh
from kimi.kernels.slices import attention_matrices, feed_forward_matrices
from kimi.kernels.stream import pack_tiles
from kimi.kernels.words import BF16, pack_bf16
from kimi.prefill.matrices import Tiles, left
from kimi.prefill.pairs import even_first, high, low, pack, unpack_bf16
from tests.interpret.small import small_config
from tests.tolerances import OPS_SUMS
from tests.unit.kernels.build import small_32

ROWS = 5


@pytest.mark.parametrize("mla", [False, True])
@pytest.mark.parametrize("moe", [False, True])
@pytest.mark.parametrize("config, ranks", [(small_32, 32), (small_32, 4), (small_config, 1)])
def test_every_matrix_of_a_layer(config, ranks, mla, moe):
    """Panels and tails, cut and uncut, behind each other in the tiles of one layer."""
    c = config()
    mesh = default_mesh(c, ranks)
    layout, rng = Layout(c, mesh), np.random.default_rng(0)
    for stream, matrices in (
        (layout.attention_streams[mla], attention_matrices(c, mesh, 0, mla)),
        (layout.feed_forward_streams[moe], feed_forward_matrices(c, mesh, 0, moe)),
    ):
        values = {}

        def read(piece, values=values):
            shape = piece.rows[1] - piece.rows[0], piece.cols[1] - piece.cols[0]
            value = rng.standard_normal(shape).astype(BF16)
            values[piece] = value.astype(np.float32)
            return value.view(np.uint16)

        tiles = Tiles(stream, jnp.asarray(pack_tiles(stream, matrices, read)))
        for m in matrices:
            name, parts = m.name, [values[p].T if p.transposed else values[p] for p in m.pieces]
            weight = np.concatenate(parts, 1)
            x = rng.standard_normal((ROWS, len(weight))).astype(BF16).astype(np.float32)
            found = tiles.product(name, left(jnp.asarray(x)))
            expected = x.astype(np.float64) @ weight
            assert found.shape == expected.shape
            error = np.abs(found - expected).max()
            assert error <= OPS_SUMS * np.abs(x).max() * np.abs(weight).max() * len(weight), name


def test_words_and_pairs():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((3, 8)), jnp.bfloat16)
    np.testing.assert_array_equal(low(pack(x, -x)), x)
    np.testing.assert_array_equal(high(pack(x, -x)), -x)
    for columns in (8, 384, 514):  # less than a block, whole ones and a rest
        y = jnp.asarray(rng.standard_normal((3, columns)), jnp.bfloat16)
        expected = jnp.concatenate([y[:, 0::2], y[:, 1::2]], 1)
        np.testing.assert_array_equal(even_first(y), expected)
    bits = np.asarray(x)[:, :7].view(np.uint16)
    np.testing.assert_array_equal(unpack_bf16(jnp.asarray(pack_bf16(bits)), 7), x[:, :7])
