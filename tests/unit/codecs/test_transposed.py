"""Words whose lanes are outputs, against the codec that takes them as stored."""

import ml_dtypes
import numpy as np
import pytest

from kimi.codecs import arithmetic, fp8, lookup, mxfp4, transposed
from kimi.errors import CodecError


def weight(rows, width, low=110, high=121, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, width // 2), dtype=np.uint8)
    return codes, rng.integers(low, high + 1, (rows, width // 32), dtype=np.uint8)


def transpose(packed, scale, panels=1):
    """The same in panels side by side along the rows."""
    words = packed.view("<u4").reshape(panels, -1, packed.shape[1] // 4).swapaxes(1, 2)
    scale = scale.reshape(panels, -1, scale.shape[1]).swapaxes(1, 2)
    return np.ascontiguousarray(words), np.ascontiguousarray(scale)


def joined(panels):
    """[P, R, N] -> [P * N, R]."""
    return np.ascontiguousarray(panels.swapaxes(1, 2)).reshape(-1, panels.shape[1])


def encode(packed, scale, block=256):
    """FP8 bytes [rows, width] and bytes of scales [rows, blocks]."""
    ((words, scales),) = transposed.encode([transpose(packed, scale)], block)
    return joined(words).view(np.uint8), joined(scales)


@pytest.mark.parametrize("rows, width", [(3, 32), (5, 256), (128, 288), (40, 544), (1, 1024)])
@pytest.mark.parametrize("block", [32, 256])
def test_equal_to_the_codec(rows, width, block):
    packed, scale = weight(rows, width)
    values, scales = encode(packed, scale, block)
    expected = fp8.encode_blocks(packed, scale, block)
    assert scales.shape == expected.scales.shape
    np.testing.assert_array_equal(values, expected.values.view(np.uint8))
    exponents = (scales.astype(np.uint16) << 7).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(exponents, expected.scales)


def test_several_weights_in_panels():
    given = [weight(12, 288, seed=1), weight(6, 512, seed=2)]
    weights = [transpose(*given[0], 4), transpose(*given[1], 2)]
    for own, (words, scales) in zip(given, transposed.encode(weights, 256), strict=True):
        values, exponents = encode(*own)
        np.testing.assert_array_equal(joined(words).view(np.uint8), values)
        np.testing.assert_array_equal(joined(scales), exponents)


@pytest.mark.parametrize("low", [1, 2, 6, 120, 230, 243])
def test_scales_at_the_ends(low):
    packed, scale = weight(7, 512, low, low + 11)
    values, scales = encode(packed, scale)
    values = values.view(fp8.FP8).astype(np.float64)
    factors = np.repeat(np.ldexp(1.0, scales.astype(int) - 127), 256, 1)
    exact = mxfp4.decode(packed, scale, np.float64)
    np.testing.assert_array_equal((values * factors).view(np.uint64), exact.view(np.uint64))


def test_both_formulas_give_the_bytes_of_the_table():
    """A word is four independent bytes: every code under every exponent is all there is."""
    codes = np.arange(16, dtype=np.uint32) * np.uint32(0x01010101)
    for e in range(arithmetic.MIN_OFFSET, arithmetic.MAX_OFFSET + 1):
        expected = lookup.codes()[e - lookup.MIN_OFFSET].astype(np.uint32) * np.uint32(0x01010101)
        k = np.uint32(8 * (e + 6))
        for formula in (transposed._assemble, transposed._definition):
            np.testing.assert_array_equal(np.asarray(formula(codes, k)), expected, str(e))


def test_neighbours_do_not_matter():
    """Every pair of codes beside each other, in every position of a word."""
    first, second = (a.reshape(-1) for a in np.mgrid[0:16, 0:16].astype(np.uint32))
    for shift in (0, 8, 16):
        codes = first << np.uint32(shift) | second << np.uint32(shift + 8)
        for k in (np.uint32(8), np.uint32(96)):
            for formula in (transposed._assemble, transposed._definition):
                both = np.asarray(formula(codes, k))
                alone = [np.asarray(formula(c << np.uint32(s), k))
                         for c, s in ((first, shift), (second, shift + 8))]  # fmt: skip
                np.testing.assert_array_equal(both, alone[0] | alone[1])


def test_wide_blocks_are_left_to_the_codec():
    packed, scale = weight(4, 512, 112, 120)
    scale[2, 9], scale[2, 10] = 100, 112
    assert transposed.encode([transpose(*weight(4, 512)), transpose(packed, scale)], 256) is None


def test_without_a_cpu_backend_nothing_is_done(monkeypatch):
    monkeypatch.setattr(arithmetic, "device", lambda: None)
    assert transposed.encode([transpose(*weight(4, 256))], 256) is None


@pytest.mark.parametrize("formula", ["_assemble", "_definition"])
def test_a_result_that_does_not_read_back_is_an_error(monkeypatch, formula):
    right = getattr(transposed, formula)
    flipped = lambda codes, k: right(codes, k) ^ (codes >> 24 == 0x0A)  # noqa: E731
    monkeypatch.setattr(transposed, formula, flipped)
    transposed._program.cache_clear()
    packed, scale = weight(64, 512)
    try:
        with pytest.raises(CodecError, match="expected the MXFP4 codes when read back"):
            transposed.encode([transpose(packed | 0xA0, scale)], 256)
    finally:
        transposed._program.cache_clear()
