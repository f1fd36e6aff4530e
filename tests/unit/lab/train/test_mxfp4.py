import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kimi.codecs.mxfp4 import MAGNITUDES, decode
from kimi.errors import CodecError
from kimi.lab.train.mxfp4 import encode

packed_weights = st.integers(1, 3).flatmap(
    lambda groups: st.tuples(
        hnp.arrays(np.uint8, (2, groups * 16)),
        hnp.arrays(np.uint8, (2, groups), elements=st.integers(1, 252)),
    )
)


@settings(max_examples=60, deadline=None)
@given(packed_weights)
def test_encode_keeps_values_that_lie_on_a_grid(weight):
    decoded = decode(*weight)
    again = decode(*encode(decoded))
    assert np.array_equal(again.view(np.uint32), decoded.view(np.uint32))


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float32, 32, elements=st.floats(-(2.0**100), 2.0**100, width=32)))
def test_encode_takes_the_nearest_value_under_the_smallest_scale_without_clipping(weight):
    packed, scale = encode(weight)
    unit = 2.0 ** (int(scale[0]) - 127)
    largest = np.abs(weight).max().astype(np.float64)
    assert largest <= 6 * unit
    if scale[0] > 1 and largest > 0:
        assert largest > 3 * unit
    grid = np.array(sorted({s * m * unit for m in MAGNITUDES for s in (1, -1)}))
    distance = np.abs(grid - weight.astype(np.float64)[:, None]).min(axis=1)
    decoded = decode(packed, scale, np.float64)
    assert np.array_equal(np.abs(decoded - weight.astype(np.float64)), distance)


def test_encode_breaks_ties_to_the_even_mantissa():
    weight = np.zeros(32, np.float32)
    weight[:8] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6]
    decoded = decode(*encode(weight))
    assert decoded[:8].tolist() == [0, 1, 1, 2, 2, 4, 4, 6]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_encode_accepts_the_16_bit_floats(dtype):
    weight = np.linspace(-6, 6, 64).astype(dtype)
    wide = encode(weight.astype(np.float32))
    assert all(np.array_equal(a, b) for a, b in zip(encode(weight), wide, strict=True))


def test_encode_gives_zeros_scale_one():
    packed, scale = encode(np.array([0.0] * 31 + [-0.0], np.float32))
    assert scale.tolist() == [127]
    assert packed.tolist() == [0] * 15 + [0x80]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_encode_refuses_values_that_are_not_finite(value):
    weight = np.zeros((3, 64), np.float32)
    weight[1, 40] = value
    with pytest.raises(CodecError, match="row 1, input 40: expected a finite value"):
        encode(weight)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.zeros((2, 33), np.float32), "multiple of 32"),
        (np.zeros((2, 32), np.float64), "found float64"),
        (np.float32(1), "multiple of 32"),
    ],
)
def test_encode_refuses_other_arrays(weight, message):
    with pytest.raises(CodecError, match=message):
        encode(weight)
