"""Checks of single values."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from kimi import values
from kimi.errors import InputError

HUGE = 10**5000  # Python refuses to write it out
NO_INTEGERS = [None, True, np.bool_(True), 1.0, np.float64(1), "1", b"1", [1], np.ones(1, int), 1j]
NO_NUMBERS = [None, False, np.bool_(True), "1.5", b"1", [1.5], 1j, np.ones(1), object()]


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.array(3), jnp.int32(3)])
def test_integers_of_all_libraries(value):
    found = values.integer("x", value, 3, 3)
    assert found == 3 and type(found) is int


@pytest.mark.parametrize("value", [0.5, np.float16(0.5), np.array(0.5), jnp.bfloat16(0.5)])
def test_numbers_of_all_libraries(value):
    found = values.number("x", value)
    assert found == 0.5 and type(found) is float
    assert values.number("x", np.int64(2)) == 2 and values.number("x", -HUGE) == -np.inf


@pytest.mark.parametrize(
    "check,wrong,expected",
    [
        (values.integer, NO_INTEGERS, "an integer"),
        (values.number, NO_NUMBERS, "a number"),
        (values.flag, [None, 0, 1, "no", np.int64(1)], "True or False"),
        (values.text, [None, b"x", 1, ["x"]], "a text"),
        (values.path, [None, "", b"x", 3, "a\0b", "a\nb"], "a path or a hub id"),
    ],
)
def test_what_is_of_another_type_is_named_on_one_line(check, wrong, expected):
    for value in wrong:
        with pytest.raises(InputError, match=rf"^the name: expected {expected}, found .*\Z"):
            check("the name", value)


def test_ranges():
    for value, low, high, expected in [
        (0, 1, None, "at least 1, found 0"),
        (9, 1, 8, "an integer from 1 to 8, found 9"),
        (HUGE, 1, None, "an integer of 64 bits, found a value of type int"),
    ]:
        with pytest.raises(InputError, match=f"^x: expected {expected}$"):
            values.integer("x", value, low, high)
    with pytest.raises(InputError, match=re.escape("x: expected one of a, b, found ['a']")):
        values.choice("x", ["a"], ("a", "b"))
    assert values.path("x", Path("a") / "b") == "a/b" and values.flag("x", np.bool_(True)) is True


def test_a_value_is_shown_on_one_short_line():
    for value in (np.ones((40, 40)), "x" * 1000, "a\nb", HUGE):
        assert "\n" not in values.shown(value) and len(values.shown(value)) <= 80
