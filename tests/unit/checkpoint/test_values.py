import ml_dtypes
import numpy as np
import pytest

from kimi.checkpoint import values
from kimi.errors import CheckpointError

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_names_the_first_value_that_is_not_finite(dtype, bad):
    array = np.zeros((3, 4, 5), dtype)
    array[1, 2, 3] = array[2, 0, 0] = bad
    with pytest.raises(CheckpointError, match=r"w: .* found -?(nan|inf) at index \[1, 2, 3\]"):
        values.check_finite("w", array)


@pytest.mark.parametrize("dtype", [*FLOATS, ml_dtypes.float8_e4m3fn])
def test_the_largest_values_pass(dtype):
    limit = ml_dtypes.finfo(dtype)
    values.check_finite("w", np.array([limit.max, limit.min, limit.tiny, 0.0, -0.0], dtype))


def test_fp8_nan():
    with pytest.raises(CheckpointError, match=r"at index \[1\]"):
        values.check_finite("w", np.array([0, 0xFF], np.uint8).view(ml_dtypes.float8_e4m3fn))


def test_looks_beyond_the_first_chunk(monkeypatch):
    monkeypatch.setattr(values, "_CHUNK", 7)
    array = np.zeros((5, 6), np.float32)
    array[4, 5] = np.nan
    with pytest.raises(CheckpointError, match=r"at index \[4, 5\]"):
        values.check_finite("w", array)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_integers_pass(dtype):
    values.check_finite("w", np.full(3, np.iinfo(dtype).max, dtype))


def test_empty_and_unaligned_arrays():
    values.check_finite("w", np.zeros((0, 3), np.float32))
    raw = np.zeros(9, np.uint8)
    raw[-1], raw[-2] = 0x7F, 0xC0
    with pytest.raises(CheckpointError, match=r"found nan at index \[1\]"):
        values.check_finite("w", raw[1:].view(np.float32))
