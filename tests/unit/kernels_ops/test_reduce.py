"""Words, and sums of partials that travelled as words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.kernels.ops import reduce
from tests.tolerances import OPS_SUMS
from tests.unit.kernels_ops.support import bf16, close, words

pack, unpack = jax.jit(reduce.pack), jax.jit(reduce.unpack)
sum_partials = jax.jit(reduce.sum_partials, static_argnums=1)


def test_words_round_once_and_come_back_exactly():
    x = np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)
    x[0, :4] = [np.inf, -0.0, 3e38, 1.00390625]  # the last one is a tie
    np.testing.assert_array_equal(pack(x), words(x))
    back = np.asarray(unpack(pack(x)))
    np.testing.assert_array_equal(back, bf16(x))
    np.testing.assert_array_equal(np.signbit(back), np.signbit(x))
    np.testing.assert_array_equal(pack(back), pack(x))


@pytest.mark.parametrize("partials", [1, 2, 4, 8, 32])
@pytest.mark.parametrize("rows", [8, 16, 32])
def test_sum_of_ranks(partials, rows):
    rng = np.random.default_rng(rows)
    # Ranks of very different size, so that summing in bfloat16 would show.
    x = bf16(
        rng.standard_normal((partials, rows, 128)) * 10.0 ** -np.arange(partials)[:, None, None]
    )
    total = sum_partials(words(x.reshape(-1, 128)), partials)
    close(total, x.astype(np.float64).sum(0), OPS_SUMS)


def test_refuses_rows_that_share_a_tile_unevenly():
    with pytest.raises(
        ValueError, match="expected 2 x r word rows, r 4 or a multiple of 8, found 24"
    ):
        reduce.sum_partials(jnp.zeros((24, 128), jnp.uint32), 2)
