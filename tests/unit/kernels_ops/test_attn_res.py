"""Residual mix and norms against the reference and against float64."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.config import ModelConfig
from kimi.kernels.ops import attn_res
from kimi.reference.model import AttentionResidual
from kimi.reference.numerics import rms_norm
from tests.conftest import DATA
from tests.tolerances import OPS_BF16, OPS_CANCELLED, OPS_SUMS
from tests.unit.kernels_ops.support import close, f64, vector

EPS, SIZE, SLOTS = 1e-5, 512, 8
CONFIG = ModelConfig.from_dir(DATA / "k3_tiny")


def fold(x):
    """[..., 1, D] -> [..., 1, D / 128, 128]."""
    return x.reshape(*x.shape[:-1], -1, 128)


def same(x):
    return x


LAYOUTS = pytest.mark.parametrize("rows,layout", [(8, same), (1, fold)], ids=["rows", "folded"])


@jax.jit
def run(residuals, prefix, score_weight, norm_weight, count):
    inverse = [attn_res.inverse_rms(v, EPS) for v in residuals]
    frozen = attn_res.freeze(list(residuals), inverse, score_weight, count)
    mixed, norm = attn_res.attn_res(frozen, prefix, score_weight, EPS)
    return mixed, norm, attn_res.attn_res_norm(frozen, prefix, score_weight, norm_weight, EPS)


def definition(residuals, prefix, score_weight):
    v = np.concatenate([f64(residuals), f64(prefix)[None]])
    score = (v * f64(score_weight)).sum(-1) / np.sqrt((v * v).mean(-1) + EPS)
    weight = np.exp(score - score.max(0))
    return ((weight / weight.sum(0))[..., None] * v).sum(0)


def inputs(rows, seed=0, gain=0.05):
    rng = np.random.default_rng(seed)
    residuals = rng.standard_normal((SLOTS, rows, SIZE)).astype(np.float32)
    prefix = rng.standard_normal((rows, SIZE)).astype(np.float32)
    weights = rng.standard_normal((2, 1, SIZE)).astype(np.float32)
    return residuals, prefix, gain * weights[0], weights[1]


@LAYOUTS
@pytest.mark.parametrize("gain", [0.05, 3.0], ids=["soft", "one candidate wins"])
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_attn_res(rows, layout, count, gain):
    residuals, prefix, score_weight, norm_weight = inputs(rows, count, gain)
    expected = definition(residuals[:count], prefix, score_weight)
    inverse = 1 / np.sqrt((expected**2).mean(-1, keepdims=True) + EPS)
    residuals[count:] = np.nan  # not yet written in this step
    args = layout(jnp.asarray(residuals)), layout(jnp.asarray(prefix))
    weights = vector(score_weight[0]), vector(norm_weight[0])
    mixed, norm, normed = run(*args, *weights, jnp.int32(count))
    # Scores of magnitude 100 lose more bits than the sums themselves.
    close(mixed.reshape(rows, SIZE), expected, OPS_SUMS * max(1, gain * 10))
    close(norm.reshape(rows, 128)[:, :1], inverse, OPS_SUMS * max(1, gain * 10))
    assert normed.dtype == jnp.bfloat16
    close(normed.reshape(rows, SIZE), expected * inverse * norm_weight, OPS_BF16)


@LAYOUTS
@pytest.mark.parametrize("left", [1e-2, 1e-3, 0.0])
def test_bank_and_prefix_that_cancel(rows, layout, left):
    """The quadratic form loses what cancels, and never becomes a root of a negative number."""
    residuals, prefix, score_weight, norm_weight = inputs(rows, 7)
    prefix = -residuals[0] + left * prefix
    expected = definition(residuals[:1], prefix, 0 * score_weight)
    args = layout(jnp.asarray(residuals)), layout(jnp.asarray(prefix))
    weights = vector(0 * score_weight[0]), vector(norm_weight[0])
    mixed, norm, _ = run(*args, *weights, jnp.int32(1))
    close(mixed.reshape(rows, SIZE), expected, OPS_SUMS, scale=np.abs(prefix).max())
    # Absolutely, the mean square is as exact as that of the summands.
    square = 1 / f64(norm).reshape(rows, 128)[:, 0] ** 2 - EPS
    close(square, (expected**2).mean(-1), OPS_CANCELLED, scale=1.0)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_equals_the_reference_modules(count):
    module = AttentionResidual(replace(CONFIG, hidden_size=128))
    size = 128
    rng = np.random.default_rng(1)
    residuals, weight = rng.standard_normal((4, 8, size)), rng.standard_normal((3, size))
    prefix = jnp.asarray(rng.standard_normal((8, size)), jnp.float32)
    residuals, weight = jnp.asarray(residuals, jnp.float32), jnp.asarray(weight, jnp.float32)
    module.norm.weight[...] = weight[0]
    module.proj[...] = 0.1 * weight[1:2]
    expected = module(list(residuals[:count]), prefix)
    vectors = vector(weight[0] * 0.1 * weight[1]), vector(weight[2])
    mixed, _, normed = run(residuals, prefix, *vectors, jnp.int32(count))
    close(mixed, expected, OPS_SUMS)
    close(normed, rms_norm(expected, weight[2], EPS), OPS_BF16)


@LAYOUTS
def test_rms_norm(rows, layout):
    _, x, _, weight = inputs(rows, 3)
    run_norm = jax.jit(attn_res.rms_norm, static_argnums=2)
    out = run_norm(layout(jnp.asarray(x)), vector(weight[0]), 1e-6)
    close(out.reshape(rows, SIZE), rms_norm(jnp.asarray(x), jnp.asarray(weight), 1e-6), OPS_BF16)


def test_refuses_half_tiles():
    with pytest.raises(ValueError, match=r"128 lanes, found \[8, 200\]"):
        attn_res.panels(jnp.zeros((8, 200)))
