import ml_dtypes
import numpy as np
import pytest

from kimi.codecs import mxfp4
from kimi.errors import CodecError

MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]  # of the OCP MX specification, E2M1


def every_code_and_scale():
    """One group per scale byte; its inputs run through the 16 codes twice."""
    scale = np.arange(1, 255, dtype=np.uint8)[:, None]
    row = np.array([low | high << 4 for low in range(0, 16, 2) for high in [low + 1]], np.uint8)
    return np.tile(row, (254, 2)), scale


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16])
def test_decodes_every_code_under_every_scale(dtype):
    packed, scale = every_code_and_scale()
    if dtype != np.float64:  # bytes 253 and 254 leave the range of 32 bits
        packed, scale = packed[:252], scale[:252]
    decoded = mxfp4.decode(packed, scale, dtype)
    assert decoded.dtype == dtype
    decoded = decoded.astype(np.float64)
    for row, byte in zip(decoded, scale[:, 0].tolist(), strict=True):
        for i, value in enumerate(row):
            code = i % 16
            want = MAGNITUDES[code & 7] * 2.0 ** (byte - 127)
            assert value == (-want if code & 8 else want)
            assert np.signbit(value) == bool(code & 8)


def test_low_nibble_is_the_even_input():
    packed = np.zeros((1, 16), np.uint8)
    packed[0, 0] = 0x72
    decoded = mxfp4.decode(packed, np.array([[127]], np.uint8))
    assert decoded[0, :3].tolist() == [1.0, 6.0, 0.0]


def test_groups_run_along_the_last_axis():
    packed = np.full((2, 3, 32), 0x22, np.uint8)
    scale = np.arange(120, 132, dtype=np.uint8).reshape(2, 3, 2)
    decoded = mxfp4.decode(packed, scale)
    assert decoded.shape == (2, 3, 64)
    assert np.array_equal(decoded[..., ::32], 2.0 ** (scale.astype(int) - 127))
    assert np.array_equal(decoded[..., 31::32], decoded[..., ::32])


def test_decodes_arrays_longer_than_a_chunk():
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, (300, 960), dtype=np.uint8)
    scale = rng.integers(1, 252, (300, 60), dtype=np.uint8)
    whole = mxfp4.decode(packed, scale)
    for row in (0, 137, 299):
        assert np.array_equal(whole[row], mxfp4.decode(packed[row], scale[row]))


@pytest.mark.parametrize("shape", [(0, 16), (3, 0), (0, 0)])
def test_empty_weights(shape):
    packed = np.zeros(shape, np.uint8)
    scale = np.zeros((shape[0], shape[1] // 16), np.uint8)
    assert mxfp4.decode(packed, scale).shape == (shape[0], shape[1] * 2)


@pytest.mark.parametrize("byte", [0, 255])
def test_refuses_scale_bytes_0_and_255_with_their_place(byte):
    scale = np.full((4, 3), 127, np.uint8)
    scale[2, 1] = byte
    with pytest.raises(CodecError, match=rf"row 2, group 1: .* found {byte}$"):
        mxfp4.decode(np.zeros((4, 48), np.uint8), scale)


def test_names_a_row_by_all_its_axes():
    scale = np.full((5, 4, 3), 127, np.uint8)
    scale[3, 2, 1] = 255
    with pytest.raises(CodecError, match=r"row \(3, 2\), group 1"):
        mxfp4.decode(np.zeros((5, 4, 48), np.uint8), scale)


def test_refuses_values_beyond_float32():
    packed, scale = every_code_and_scale()
    with pytest.raises(CodecError, match="row 252, group 0: expected values below 2.128"):
        mxfp4.decode(packed, scale)
    packed[:] = 0x33  # 1.5 * 2^127 still fits
    assert mxfp4.decode(packed, scale).max() == np.float32(1.5 * 2.0**127)


@pytest.mark.parametrize(
    ("packed", "scale", "message"),
    [
        (np.zeros((2, 16), np.int8), np.ones((2, 1), np.uint8), "packed: expected uint8"),
        (np.zeros((2, 16), np.uint8), np.ones((2, 1), np.int32), "scale: expected uint8"),
        (np.zeros((2, 17), np.uint8), np.ones((2, 1), np.uint8), "packed .* and scale"),
        (np.zeros((2, 32), np.uint8), np.ones((2, 1), np.uint8), r"found \[2, 32\] and \[2, 1\]"),
        (np.zeros((2, 16), np.uint8), np.ones((3, 1), np.uint8), r"found \[2, 16\] and \[3, 1\]"),
        (np.uint8(1), np.ones(1, np.uint8), "at least one axis"),
    ],
)
def test_refuses_arrays_that_are_no_mxfp4_weight(packed, scale, message):
    with pytest.raises(CodecError, match=message):
        mxfp4.decode(packed, scale)


@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_refuses_dtypes_that_would_round(dtype):
    with pytest.raises(CodecError, match="dtypes float32, float64, bfloat16"):
        mxfp4.decode(np.zeros(16, np.uint8), np.ones(1, np.uint8), dtype)
