"""Panels whose lanes are outputs, against the codec that takes weights as stored."""

import ml_dtypes
import numpy as np
import pytest

from kimi.codecs import arithmetic, fp8, mxfp4, transposed
from kimi.codecs.native import inlined
from kimi.errors import CodecError


def weight(rows, width, low=110, high=121, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, width // 2), dtype=np.uint8)
    return codes, rng.integers(low, high + 1, (rows, width // 32), dtype=np.uint8)


def empty(rows, width, block=256):
    """Panels for so many outputs, full of something else."""
    panels = -(-rows // 128)
    codes = np.full((panels, width // 4 + 8, 128), 0xDEADBEEF, np.uint32)
    return codes, np.full((panels, -(-width // block) + 1, 128), 0xEE, np.uint8)


def joined(panels, rows, width):
    """[P, R, 128] -> [N, R]."""
    return np.ascontiguousarray(panels.swapaxes(1, 2)).reshape(-1, panels.shape[1])[:rows, :width]


def encode(packed, scale, block=256):
    """FP8 bytes [rows, width] and bytes of scales [rows, blocks]."""
    rows, width = len(packed), packed.shape[1] * 2
    codes, scales = empty(rows, width, block)
    assert transposed.encode(packed, scale, block, 0, codes, scales)
    values = np.ascontiguousarray(joined(codes, rows, width // 4)).view(np.uint8)
    return values, joined(scales, rows, -(-width // block))


@pytest.mark.parametrize(
    "rows, width", [(3, 32), (5, 256), (128, 288), (129, 64), (300, 544), (1, 1024)]
)
@pytest.mark.parametrize("block", [32, 256])
def test_equal_to_the_codec(rows, width, block):
    packed, scale = weight(rows, width)
    values, scales = encode(packed, scale, block)
    expected = fp8.encode_blocks(packed, scale, block)
    np.testing.assert_array_equal(values, expected.values.view(np.uint8))
    exponents = (scales.astype(np.uint16) << 7).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(exponents, expected.scales)


@pytest.mark.parametrize("first, second", [(32, 96), (192, 192), (64, 128), (130, 30)])
def test_weights_side_by_side(first, second):
    """The second begins in the middle of a panel; rows and lanes beyond both are left alone."""
    packed, scale = weight(first + second, 288)
    codes, scales = empty(first + second, 288)
    for start, stop in ((0, first), (first, first + second)):
        own = packed[start:stop], scale[start:stop]
        assert transposed.encode(*own, 256, start, codes, scales)
    rows = first + second
    values, exponents = encode(packed, scale)
    assert np.array_equal(joined(codes, rows, 72), values.view(np.uint32))
    assert np.array_equal(joined(scales, rows, 2), exponents)
    assert (codes[:, 72:] == 0xDEADBEEF).all() and (scales[:, 2:] == 0xEE).all()
    assert (codes[-1, :, (rows - 1) % 128 + 1 :] == 0xDEADBEEF).all()


@pytest.mark.parametrize("shift", [0, 1, 4])
def test_rows_may_lie_apart_anywhere_in_memory(shift):
    """As columns of w2 in the middle of a file do, which cannot be written to."""
    packed, scale = weight(40, 64)
    memory = np.zeros(40 * 256 + 16, np.uint8)
    rows = memory[shift : shift + 40 * 256].reshape(40, 256)[:, 96:128]
    rows[...] = packed
    rows.flags.writeable = False
    for one, other in zip(encode(rows, scale), encode(packed, scale), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("low", [1, 2, 6, 120, 230, 243])
def test_scales_at_the_ends(low):
    packed, scale = weight(7, 512, low, low + 11)
    values, scales = encode(packed, scale)
    values = values.view(fp8.FP8).astype(np.float64)
    factors = np.repeat(np.ldexp(1.0, scales.astype(int) - 127), 256, 1)
    exact = mxfp4.decode(packed, scale, np.float64)
    np.testing.assert_array_equal((values * factors).view(np.uint64), exact.view(np.uint64))


def test_wide_blocks_are_left_to_the_codec():
    packed, scale = weight(200, 512, 112, 120)
    scale[131, 9], scale[131, 10] = 100, 112
    assert not transposed.encode(packed, scale, 256, 0, *empty(200, 512))


@inlined
def flipped(codes, k):
    return arithmetic.assemble(codes, k) ^ np.uint64(codes >> np.uint64(56) == np.uint64(0x0A))


@pytest.mark.parametrize(
    "formulas", [(flipped, arithmetic.definition), (arithmetic.assemble, flipped)]
)
def test_a_result_that_does_not_read_back_is_an_error(monkeypatch, formulas):
    monkeypatch.setattr(transposed, "_ENCODE", transposed._encoder(*formulas))
    packed, scale = weight(300, 512)
    packed &= 0x5F  # no code is 10
    assert transposed.encode(packed, scale, 256, 0, *empty(300, 512))
    packed[299, 255] = 0xA0
    with pytest.raises(CodecError, match="expected the MXFP4 codes when read back"):
        transposed.encode(packed, scale, 256, 0, *empty(300, 512))
