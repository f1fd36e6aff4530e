"""Answers in awkward outputs."""

import pytest

from scoring.extraction import comparable, letter, number


@pytest.mark.parametrize(
    "response, strict, flexible",
    [
        ("6 * 7 = 42.\n#### 42", "42", "42"),
        ("#### 1,234", "1234", "1234"),
        ("#### -5", "-5", "-5"),
        ("#### $18", None, "18"),  # the harness' strict pattern knows no dollar sign
        ("#### 3.50", "3.50", "3.50"),
        ("####42", None, "42"),
        ("#### 7\nWait, no: #### 8", "7", "8"),  # strict takes the first
        ("The answer is $1,080.", None, "1080"),
        ("The answer is 5.", None, "5"),
        ("That makes **36** apples", None, "36"),
        ("\\boxed{72}", None, "72"),
        ("It is 10% of 50, so 5", None, "5"),
        ("5 apples, and then ...", None, ".."),  # three full stops look like a number
        ("from -3 to 4", None, "4"),
        ("ends at -12", None, "-12"),
        ("2,5 and 3,", None, "3"),
        ("half", None, None),
        ("", None, None),
        ("####", None, None),
        ("#### x", None, None),
        ("½ or ٣", None, None),  # digits of other scripts are none
    ],
)
def test_number(response, strict, flexible):
    assert number(response) == {"strict": strict, "flexible": flexible}


def test_expected_answers_are_compared_alike():
    assert comparable(" 1,234") == "1234"
    assert comparable("$70.") == "70"


@pytest.mark.parametrize(
    "response, strict, flexible",
    [
        ("So it is helium.\nThe answer is (B).", "B", "B"),
        ("The answer is (A). No. The answer is (C).", "C", "C"),
        ("the answer is (D)", None, "D"),
        ("**Answer: C**", None, "C"),
        ("**Answer:** C", None, "C"),
        ("Answer: (A)", None, "A"),
        ("answer: b", None, None),  # letters of options are capitals
        ("Final answer: $\\boxed{\\text{D}}$", None, "D"),
        ("\\boxed{A}", None, "A"),
        ("\\boxed{(B)}", None, "B"),
        ("The correct choice is B, because (A) and (C) violate parity.", None, "B"),
        ("(A) is too large, (B) too small; hence (D)", None, "D"),
        ("Because of parity:\n\nC", None, "C"),
        ("Because of parity:\n\n**C.**", None, "C"),
        ("The answer is Cobalt.", None, None),
        ("The answer is D-glucose, which is (B)", None, "B"),
        ("The answer is Benzene (C)", None, "C"),
        ("The answer is (E)", None, None),
        ("A photon has no mass.", None, None),
        ("I don't know", None, None),
        ("", None, None),
    ],
)
def test_letter(response, strict, flexible):
    assert letter(response) == {"strict": strict, "flexible": flexible}
