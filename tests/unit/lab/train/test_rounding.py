import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kimi.codecs.mxfp4 import decode
from kimi.lab.train import rounding
from kimi.lab.train.mxfp4 import encode
from kimi.reference.loading import Template

# Float32 normals: XLA's CPU code flushes smaller ones to zero.
values = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(np.float32, (2, 64), elements=values), st.integers(-30, 30))
def test_mxfp4_is_the_codec(w, exponent):
    w = np.ldexp(np.float32(w), exponent - 20).astype(np.float32)
    w[np.abs(w) < 1e-30] = 0
    expected = decode(*encode(w))
    assert (np.asarray(rounding.mxfp4(jnp.asarray(w))) == expected).all()


def test_mxfp4_rounds_ties_as_the_codec():
    eighths = np.arange(-48, 49, dtype=np.float32) / 8  # all codes, ties between them, and others
    w = np.zeros(128, np.float32)
    w[: len(eighths)] = eighths
    w[31::32] = 6  # one scale for all
    assert (np.asarray(rounding.mxfp4(jnp.asarray(w))) == decode(*encode(w))).all()


def test_every_tensor_has_its_format(target_model: Template, target_weights):
    stored = rounding.all_stored(target_weights)
    kinds = {"expert": 0, "float32": 0, "bfloat16": 0}
    for name, w in target_weights.items():
        w, kept = np.asarray(w), np.asarray(stored[name])
        if ".experts." in name:
            kinds["expert"] += 1
            assert (kept == decode(*encode(w))).all()
        elif any(x in name for x in ("conv1d", "A_log", "dt_bias", "o_norm", "correction_bias")):
            kinds["float32"] += 1
            assert (kept == w).all()
        else:
            kinds["bfloat16"] += 1
            assert (kept == w.astype(ml_dtypes.bfloat16).astype(np.float32)).all()
    assert kinds["expert"] == 3 and kinds["float32"] == 7 and kinds["bfloat16"] > 20


@pytest.mark.parametrize("quantise", [0.0, 1.0])
def test_gradients_pass_straight_through(quantise):
    name = "layers.1.block_sparse_moe.experts.w1"
    w = jax.random.normal(jax.random.key(0), (2, 32))

    def f(w):
        return (rounding.straight_through({name: w}, jnp.float32(quantise))[name] ** 2).sum()

    value, grad = jax.value_and_grad(f)(w)
    seen = rounding.mxfp4(w) if quantise else w
    np.testing.assert_allclose(value, (seen**2).sum(), rtol=1e-6)
    np.testing.assert_allclose(grad, 2 * seen, rtol=1e-6)
