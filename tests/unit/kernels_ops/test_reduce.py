"""Messages: packing, sums over ranks, joining."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.kernels.ops import reduce
from tests.tolerances import OPS_SUMS
from tests.unit.kernels_ops.support import bf16, close

pack = jax.jit(reduce.pack_bf16)
unpack, sum_bf16, join_bf16, join_values = (
    jax.jit(f, static_argnums=1)
    for f in (reduce.unpack_bf16, reduce.sum_bf16, reduce.join_bf16, reduce.join_values)
)
COUNTS = pytest.mark.parametrize("count", [2, 224, 301])


@COUNTS
def test_halves_round_once_and_come_back_exactly(count):
    x = np.random.default_rng(0).standard_normal((8, count)).astype(np.float32)
    x[:4, 0] = [np.inf, -0.0, 3e38, 1.00390625]  # the last one is a tie
    words = np.asarray(pack(x))
    middle = -(-count // 2)
    assert words.shape == (8, -(-middle // 128) * 128) and not words[:, middle:].any()
    bits = jnp.asarray(x).astype(jnp.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(words[:, :middle] & 0xFFFF, bits[:, :middle])
    np.testing.assert_array_equal(words[:, : count - middle] >> 16, bits[:, middle:])
    back = np.asarray(unpack(words, count))
    np.testing.assert_array_equal(back, bf16(x))
    np.testing.assert_array_equal(np.signbit(back), np.signbit(x))


@COUNTS
@pytest.mark.parametrize("ranks,rows", [(4, 1), (32, 8)])
def test_sum_of_ranks(count, ranks, rows):
    rng = np.random.default_rng(count)
    # Ranks of very different size, so that summing in bfloat16 would show.
    size = 10.0 ** -np.arange(ranks)[:, None, None]
    x = bf16(rng.standard_normal((ranks, rows, count)) * size)
    total = sum_bf16(jnp.stack([pack(part) for part in x]), count)
    close(total, x.astype(np.float64).sum(0), OPS_SUMS)
    words = x.view(np.uint32)
    close(jax.jit(reduce.sum_values)(words), x.astype(np.float64).sum(0), OPS_SUMS)


@pytest.mark.parametrize("ranks,count", [(4, 224), (32, 12), (2, 112)])
def test_cut_and_join_are_inverses(ranks, count):
    x = bf16(np.random.default_rng(0).standard_normal((8, ranks * count)))
    parts = jnp.stack([pack(part) for part in np.split(x, ranks, 1)])
    assert parts.shape == (ranks, 8, 128)
    np.testing.assert_array_equal(join_bf16(parts, count), x)
    values = np.pad(x.reshape(8, ranks, count).swapaxes(0, 1), ((0, 0), (0, 0), (0, 256 - count)))
    np.testing.assert_array_equal(join_values(values.view(np.uint32), count), x)
