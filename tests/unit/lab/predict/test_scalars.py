import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.lab.predict.scalars import (
    ARITHMETIC,
    Pointer,
    div_rem,
    float_to_int,
    from_float,
    immediate,
    pointer_arithmetic,
    signed,
    to_float,
)

words = st.integers(0, 2**32 - 1)
few = settings(max_examples=60, deadline=None)


@few
@given(words, words)
def test_integer_operations_match_numpy(a, b):
    x, y = np.array([a], np.uint32), np.array([b], np.uint32)
    i, j = x.view(np.int32), y.view(np.int32)
    with np.errstate(over="ignore"):
        assert ARITHMETIC["sadd.s32"](a, b) == (x + y)[0]
        assert ARITHMETIC["ssub.s32"](a, b) == (x - y)[0]
        assert ARITHMETIC["smul.u32"](a, b) == (x * y)[0]
    assert ARITHMETIC["smin.s32"](a, b) == np.minimum(i, j).view(np.uint32)[0]
    assert ARITHMETIC["smax.u32"](a, b) == np.maximum(x, y)[0]
    assert ARITHMETIC["scmp.lt.s32.totalorder"](a, b) == int(i[0] < j[0])
    assert ARITHMETIC["scmp.ge.u32.totalorder"](a, b) == int(x[0] >= y[0])
    assert ARITHMETIC["sc.u32"](a, b) == int(a + b >= 2**32)


@few
@given(words, st.integers(0, 40))
def test_shifts(a, by):
    assert ARITHMETIC["sshll.u32"](a, by) == (a << by) % 2**32 * (by < 32)
    assert ARITHMETIC["sshrl.u32"](a, by) == a >> by
    assert signed(ARITHMETIC["sshra.s32"](a, by)) == signed(a) >> by


@few
@given(words, words)
def test_division(a, b):
    quotient, remainder = div_rem(a, b)
    if b:
        assert quotient * b + remainder == a and remainder < b
    else:
        assert (quotient, remainder) == (2**32 - 1, a)


@few
@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_float_operations_round_to_float32(a, b):
    with np.errstate(all="ignore"):
        expected = np.float32(a) * np.float32(b)
    found = to_float(ARITHMETIC["smul.f32"](from_float(a), from_float(b)))
    assert found == expected or (np.isnan(found) and np.isnan(expected))
    assert ARITHMETIC["scmp.lt.f32.partialorder"](from_float(a), from_float(b)) == int(a < b)


@pytest.mark.parametrize(
    "value,expected",
    [(1.9, 1), (-1.9, -1), (3e9, 2**31 - 1), (-3e9, -(2**31)), (float("nan"), 0)],
)
def test_float_to_int_truncates_and_saturates(value, expected):
    assert signed(float_to_int(from_float(value))) == expected


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 2.5, -2.5])
def test_rounding_keeps_infinities(value):
    floor = to_float(ARITHMETIC["sfloor.f32"](from_float(value), 0))
    assert floor == np.floor(np.float32(value))


@pytest.mark.parametrize(
    "text,word",
    [("7", 7), ("0x1f", 31), ("4294967295", 2**32 - 1), ("1.5", from_float(1.5)), ("%s", None)],
)
def test_immediates(text, word):
    assert immediate(text) == word


def test_pointers_step_and_leave_the_core():
    base = Pointer("alloc", "allocation3")
    assert pointer_arithmetic("sadd.s32", base, 2).key == ("allocation3", 2)
    assert pointer_arithmetic("sor.u32", 65536, base).remote
    assert pointer_arithmetic("sshll.u32", base, 4) == base
    assert pointer_arithmetic("scmp.ne.s32.totalorder", base, 0) == 1
