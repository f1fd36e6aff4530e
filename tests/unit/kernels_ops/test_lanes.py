"""Products in three bfloat16 passes, and the exact split behind gathered weights."""

import jax
import jax.numpy as jnp
import numpy as np

from kimi.kernels.ops import lanes
from tests.tolerances import OPS_THREE_PASSES
from tests.unit.kernels_ops.support import f64


def operands(rng, m, n, k):
    scale = 10.0 ** rng.uniform(-6, 6, (2, k))
    a, b = rng.standard_normal((m, k)) * scale[0], rng.standard_normal((n, k)) * scale[1]
    return jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32)


def test_product_nt():
    a, b = operands(np.random.default_rng(0), 16, 128, 128)
    error = np.abs(f64(jax.jit(lanes.product_nt)(a, b)) - f64(a) @ f64(b).T)
    assert (error <= OPS_THREE_PASSES * np.abs(f64(a)) @ np.abs(f64(b)).T).all()
    plain = np.abs(
        f64(lanes.dot_nt(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))) - f64(a) @ f64(b).T
    )
    assert (
        plain > OPS_THREE_PASSES * np.abs(f64(a)) @ np.abs(f64(b)).T
    ).any()  # one pass would fail


def test_outer_sum():
    a, b = operands(np.random.default_rng(1), 128, 128, 8)
    a, b = a.T, b.T
    error = np.abs(f64(jax.jit(lanes.outer_sum)(a, b)) - f64(a).T @ f64(b))
    assert (error <= OPS_THREE_PASSES * np.abs(f64(a)).T @ np.abs(f64(b))).all()


def test_split3_is_exact():
    x = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) > 1e-30) & (np.abs(x) < 1e38)]
    parts = [np.asarray(p) for p in jax.jit(lanes.split3)(x)]
    np.testing.assert_array_equal(sum(f64(p) for p in parts), f64(x))
    for part in parts:
        np.testing.assert_array_equal(
            part, jnp.asarray(part).astype(jnp.bfloat16).astype(jnp.float32)
        )


def test_spread_and_pad():
    stat = jnp.broadcast_to(jnp.arange(8.0)[:, None], (8, 128))
    np.testing.assert_array_equal(
        lanes.spread(stat, 300), np.repeat(np.arange(8.0)[:, None], 300, 1)
    )
    padded = lanes.pad_lanes(stat[:, :100], 128, -1.0)
    assert padded.shape == (8, 128) and (padded[:, 100:] == -1).all()
    assert lanes.pad_lanes(stat, 128, -1.0) is stat
