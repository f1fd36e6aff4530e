import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.codecs import arithmetic, exponents, fp8, lookup, mxfp4
from kimi.errors import CodecError
from tests.packing.inverses import decoded

BIG = 0x77  # two codes of 6
SMALL = 0x11  # two codes of 0.5


def same_bits(a, b):
    return np.array_equal(a.view(np.uint64), b.view(np.uint64))


def check_exact(packed, scale, block=fp8.BLOCK):
    """The claim of the module, in float64, where both sides are exact; bits also show -0.0."""
    result = fp8.encode_blocks(packed, scale, block)
    assert result.values.dtype == ml_dtypes.float8_e4m3fn
    assert result.scales.dtype == ml_dtypes.bfloat16
    width = packed.shape[-1] * 2
    assert result.values.shape == (*packed.shape[:-1], width)
    assert result.scales.shape == (*packed.shape[:-1], -(-width // block))
    mantissa, exponent = np.frexp(result.scales.astype(np.float64))
    assert np.all(mantissa == 0.5) and np.all(exponent >= -125)  # normal powers of two
    assert same_bits(decoded(result, np.float64, block), mxfp4.decode(packed, scale, np.float64))
    return result


def random_weight(seed, shape, low, high):
    rng = np.random.default_rng(seed)
    *lead, width = shape
    codes = rng.integers(0, 256, (*lead, width // 2), dtype=np.uint8)
    return codes, rng.integers(low, high + 1, (*lead, width // 32), dtype=np.uint8)


@pytest.mark.parametrize("shape", [(5, 256), (3, 512), (2, 3, 768), (256,)])
def test_trained_looking_weights(shape):
    check_exact(*random_weight(0, shape, 112, 120))


@pytest.mark.parametrize("width", [32, 128, 288, 544])
def test_the_last_block_may_be_shorter(width):
    check_exact(*random_weight(1, (4, width), 112, 120))


@pytest.mark.parametrize("block", [32, 64, 128, 512])
def test_other_blocks(block):
    check_exact(*random_weight(2, (3, 768), 112, 120), block)


@pytest.mark.parametrize("spread", range(15))
def test_every_spread_that_always_fits(spread):
    packed, scale = random_weight(spread, (64, 512), 100, 100 + spread)
    check_exact(packed, scale)


@pytest.mark.parametrize("byte", range(1, 255))
def test_every_scale_byte(byte):
    rng = np.random.default_rng(byte)
    packed = rng.integers(0, 256, (2, 128), dtype=np.uint8)
    low, high = max(1, byte - 14), min(254, byte + 14)
    for scale in ((low, byte), (byte, high)):
        scale = rng.integers(scale[0], scale[1] + 1, (2, 8), dtype=np.uint8)
        scale[:, 3] = byte
        check_exact(packed, scale)


def test_a_weight_of_several_chunks():
    check_exact(*random_weight(3, (3, 300, 768), 110, 121))


def two_groups(first, first_scale, second, second_scale):
    """One row of two groups, each of one packed byte repeated."""
    packed = np.repeat(np.array([[first, second]], np.uint8), 16, axis=1)
    return packed, np.array([[first_scale, second_scale]], np.uint8)


@pytest.mark.parametrize(
    ("large", "small", "most"),
    [
        (0x77, 0x11, 14),  # 6 beside 0.5
        (0x11, 0x11, 17),  # equal magnitudes
        (0x77, 0x77, 16),  # 6 = 4 + 2 spans two bits
        (0x66, 0x66, 17),  # 4 is a single bit
        (0x11, 0x66, 20),  # 0.5 far above 4
        (0x33, 0x22, 17),  # 1.5 beside 1
    ],
)
def test_the_codes_decide_how_far_apart_groups_may_lie(large, small, most):
    check_exact(*two_groups(large, 100 + most, small, 100))
    check_exact(*two_groups(small, 100, large, 100 + most))
    with pytest.raises(CodecError, match="row 0, block 0: expected set bits within 17"):
        fp8.encode_blocks(*two_groups(large, 100 + most + 1, small, 100))


@pytest.mark.parametrize("zeros", [0x00, 0x88, 0x80])
@pytest.mark.parametrize(("byte", "other"), [(1, 254), (254, 1), (120, 140), (140, 120)])
def test_groups_of_zeros_do_not_count(zeros, byte, other):
    check_exact(*two_groups(zeros, byte, BIG, other))


def test_a_block_of_zeros_alone():
    result = check_exact(*two_groups(0x00, 1, 0x88, 254))
    assert result.scales.tolist() == [[1.0]]


def test_the_refused_block_is_named():
    packed, scale = random_weight(4, (2, 3, 768), 112, 120)
    packed[1, 2, 256:272] = BIG
    scale[1, 2, 16] = 150
    packed[1, 2, 272:288] = SMALL
    scale[1, 2, 17] = 110
    with pytest.raises(
        CodecError,
        match=r"row \(1, 2\), block 2: .* found 2\^-18 to 2\^25 \(scale bytes \[150, 110, ",
    ):
        fp8.encode_blocks(packed, scale)


def test_a_wide_block_leaves_the_others_alone():
    packed, scale = random_weight(5, (4, 512), 112, 120)
    before = fp8.encode_blocks(packed, scale)
    packed[2, :16] = SMALL
    scale[2, :8] = 120
    scale[2, 0] = 106
    after = check_exact(packed, scale)
    untouched = np.ones((4, 2), bool)
    untouched[2, 0] = False
    assert np.array_equal(after.scales[untouched], before.scales[untouched])


@pytest.mark.parametrize("block", [0, -32, 16, 100])
def test_refuses_blocks_that_split_a_group(block):
    with pytest.raises(CodecError, match=f"multiple of 32 inputs, found {block}"):
        fp8.encode_blocks(*random_weight(6, (2, 256), 112, 120), block)


def test_refuses_what_mxfp4_refuses():
    packed, scale = random_weight(7, (2, 256), 112, 120)
    scale[1, 3] = 255
    with pytest.raises(CodecError, match="row 1, group 3"):
        fp8.encode_blocks(packed, scale)


@pytest.mark.parametrize("shape", [(0, 256), (3, 0)])
def test_empty_weights(shape):
    check_exact(*random_weight(8, shape, 112, 120))


def test_a_result_that_does_not_read_back_is_an_error(monkeypatch):
    broken = lookup.codes().copy()
    broken[lookup.MIN_OFFSET : None, 3] ^= 1
    monkeypatch.setattr(lookup, "codes", lambda: broken)
    lookup._quads.cache_clear()
    try:
        with pytest.raises(CodecError, match="row 0, group 0: expected the MXFP4 values"):
            fp8.encode_blocks(*two_groups(0x33, 127, 0x33, 127))
    finally:
        lookup._quads.cache_clear()


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 254), st.integers(0, 40), st.integers(1, 20))
def test_either_exact_or_refused(seed, low, spread, groups):
    """Whatever the scales: an exact result, or an error that exhaustive search over s confirms."""
    rng = np.random.default_rng(seed)
    scale = rng.integers(low, min(254, low + spread) + 1, (1, groups), dtype=np.uint8)
    kinds = np.array([0x00, 0x11, 0x66, 0x77, 0x23, 0x98], np.uint8)
    packed = rng.choice(kinds, (1, groups)).repeat(16, axis=1)
    values = mxfp4.decode(packed, scale, np.float64)[0]

    def fits(part):
        for s in range(-126, 128):
            scaled = np.ldexp(part, -s)
            if np.abs(scaled).max() > 448:
                continue
            if np.array_equal(scaled.astype(ml_dtypes.float8_e4m3fn).astype(np.float64), scaled):
                return True
        return False

    if all(fits(values[i : i + 256]) for i in range(0, len(values), 256)):
        check_exact(packed, scale)
    else:
        with pytest.raises(CodecError, match="expected set bits within 17"):
            fp8.encode_blocks(packed, scale)


@pytest.mark.parametrize("formula", [arithmetic.assemble, arithmetic.definition])
def test_both_formulas_give_the_bytes_of_the_table(formula):
    """A word is eight independent bytes: every code under every exponent is all there is."""
    ones = 0x0101010101010101
    for e in range(exponents.MIN_OFFSET, exponents.MAX_OFFSET + 1):
        for code, byte in enumerate(lookup.codes()[e - lookup.MIN_OFFSET].tolist()):
            found = formula(np.uint64(code * ones), np.uint64(8 * (e + 6) * ones))
            assert int(found) == byte * ones, (e, code)


@pytest.mark.parametrize("formula", [arithmetic.assemble, arithmetic.definition])
def test_neighbours_do_not_matter(formula):
    """Every pair of codes beside each other, in every position of a word."""
    for first, second, shift in itertools.product(range(16), range(16), range(0, 56, 8)):
        k = np.uint64(8 << shift | 96 << shift + 8)
        low, high = np.uint64(first << shift), np.uint64(second << shift + 8)
        assert formula(low | high, k) == formula(low, k) | formula(high, k)


def test_spread_takes_the_codes_in_order():
    word = np.uint64(0xFEDCBA98_76543210)
    assert arithmetic.spread(word) == 0x0B0A0908_03020100
    assert arithmetic.spread(word >> np.uint64(16)) == 0x0F0E0D0C_07060504


def test_any_wrong_bit_is_found():
    """In every byte of a group, which alone is named."""
    packed, scale = random_weight(11, (1, 96), 120, 120)
    right = fp8.encode_blocks(packed, scale, 32).values.view(np.uint64).reshape(-1)
    codes, row = packed.reshape(3, 16), np.full(3, 6 - lookup.MIN_OFFSET, np.uint8)
    for bit in range(256):
        values = right.copy()
        values[4 + bit // 64] ^= np.uint64(1 << bit % 64)
        assert lookup._differs(codes, row, values.view(np.uint8).reshape(3, 32)).tolist() == [
            False, True, False,
        ]  # fmt: skip


def test_the_table_holds_exact_products_or_nan():
    table = lookup.codes().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    exact = np.ldexp(mxfp4.VALUES, np.arange(-11, 10)[:, None])
    known = ~np.isnan(table)
    assert same_bits(table[known], exact[known])
    grid = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert not np.isin(exact[~known], grid).any()
    # Beyond the table no nonzero code is left.
    assert not np.isin(np.ldexp(mxfp4.VALUES[1:8], -12), grid).any()
    assert not np.isin(np.ldexp(mxfp4.VALUES[1:8], 10), grid).any()


def test_decode_beyond_float32_is_infinite_without_a_warning():
    packed, scale = two_groups(BIG, 254, BIG, 254)
    result = fp8.encode_blocks(packed, scale)
    assert np.isinf(decoded(result, np.float32)).all()
    assert np.isfinite(decoded(result, np.float64)).all()


@pytest.mark.parametrize("shift", [0, 1, 16])
def test_memory_may_start_anywhere(shift):
    """Tensors inside a file start at any byte and cannot be written."""
    packed, scale = random_weight(9, (3, 512), 112, 120)
    memory = np.zeros(packed.size + 128, np.uint8)
    start = -memory.ctypes.data % 64 + shift
    moved = memory[start : start + packed.size].reshape(packed.shape)
    moved[...] = packed
    moved.flags.writeable = False
    check_exact(moved, scale)
    assert np.array_equal(moved, packed)
