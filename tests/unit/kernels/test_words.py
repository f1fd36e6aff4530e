"""Words against the register bitcast that takes them apart in a kernel."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.codecs import mxfp4
from kimi.kernels import words
from kimi.kernels.errors import LayoutError
from tests.packing import inverses

RNG = np.random.default_rng(0)


def as_a_kernel_reads(value, dtype, rows):
    """u32 [R, N] -> float32 [rows, N] through `pltpu.bitcast` inside a Pallas kernel."""

    def body(ref, out):
        out[...] = pltpu.bitcast(ref[...], dtype).astype(jnp.float32)

    shape = jax.ShapeDtypeStruct((rows, value.shape[1]), jnp.float32)
    return np.asarray(pl.pallas_call(body, out_shape=shape, interpret=True)(value))


def test_bfloat16_rows():
    weight = RNG.standard_normal((16, 128), np.float32).astype(ml_dtypes.bfloat16)
    packed = words.pair_rows(weight.view(np.uint16))
    found = as_a_kernel_reads(packed, jnp.bfloat16, 16)
    np.testing.assert_array_equal(found, weight.astype(np.float32))


def test_float8_rows():
    weight = RNG.standard_normal((128, 32), np.float32).astype(ml_dtypes.float8_e4m3fn)  # [N, K]
    packed = inverses.byte_rows(weight.view(np.uint8))
    found = as_a_kernel_reads(packed, jnp.float8_e4m3fn, 32)
    np.testing.assert_array_equal(found, weight.astype(np.float32).T)


def test_float4_rows():
    """Bytes of a checkpoint as they are: the nibble order on disk is that of the bitcast."""
    codes = RNG.integers(0, 256, (128, 32), np.uint8)  # [N, K / 2]
    found = as_a_kernel_reads(inverses.byte_rows(codes), jnp.float4_e2m1fn, 64)
    ones = np.full((128, 2), mxfp4.SCALE_BIAS, np.uint8)
    np.testing.assert_array_equal(found, mxfp4.decode(codes, ones).T)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_inverses(rows, columns, seed):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**16, (2 * rows, columns)).astype(np.uint16)
    np.testing.assert_array_equal(inverses.split_rows(words.pair_rows(bits)), bits)
    np.testing.assert_array_equal(inverses.unpack_bf16(words.pack_bf16(bits), columns), bits)
    panels = words.panels(words.pair_rows(bits))
    assert panels.shape == (-(-columns // 128), rows, 128)
    np.testing.assert_array_equal(inverses.unpanel(panels)[:, :columns], words.pair_rows(bits))
    assert not inverses.unpanel(panels)[:, columns:].any()
    octets = rng.integers(0, 256, (columns, 4 * rows)).astype(np.uint8)
    np.testing.assert_array_equal(inverses.unbyte_rows(inverses.byte_rows(octets)), octets)


def test_bfloat16_bits_keep_every_bit():
    value = np.array([[0.0, -0.0, 1.5, -3e38]], ml_dtypes.bfloat16)
    found = words.bfloat16_bits("w", value.astype(np.float32))
    np.testing.assert_array_equal(found, value.view(np.uint16))


@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_other_dtypes_are_named(dtype):
    with pytest.raises(LayoutError, match=f"w: expected bfloat16 or float32, found .*{dtype}|w"):
        words.bfloat16_bits("w", np.zeros((2, 2), dtype))
    with pytest.raises(LayoutError, match="w: expected bfloat16 or float32, found"):
        words.exact_float32("w", np.zeros(2, dtype))
