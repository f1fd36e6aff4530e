"""Answers in awkward outputs."""

import pytest

from scoring.choices import choice
from scoring.extraction import comparable, letter, number, right
from scoring.numerals import canonical
from scoring.report import summarize


@pytest.mark.parametrize(
    "response, strict, harness, flexible",
    [
        ("6 * 7 = 42.\n#### 42", "42", "42", "42"),
        ("#### 1,234", "1234", "1234", "1234"),
        ("#### -5", "-5", "-5", "-5"),
        ("#### $18", None, "18", "18"),  # the harness' strict pattern knows no dollar sign
        ("#### 3.50", "3.50", "3.50", "3.5"),
        ("####42", None, "42", "42"),
        ("#### 7\nWait, no: #### 8", "7", "8", "8"),  # strict takes the first
        ("#### 10\n\nCheck: 2 steps", "10", "2", "10"),
        ("The answer is $1,080.", None, "1080", "1080"),
        ("The answer is 5.", None, "5", "5"),
        ("That makes **36** apples", None, "36", "36"),
        ("\\boxed{72}", None, "72", "72"),
        ("It is 10% of 50, so 5", None, "5", "5"),
        ("5 apples, and then ...", None, "..", "5"),  # three full stops look like a number
        ("The total is $29.00.", None, "29.00", "29"),
        ("from -3 to 4", None, "4", "4"),
        ("ends at -12", None, "-12", "-12"),
        ("2,5 and 3,", None, "3", "3"),
        ("half", None, None, None),
        ("", None, None, None),
        ("####", None, None, None),
        ("#### x", None, None, None),
        ("½ or ٣", None, None, None),  # digits of other scripts are none
    ],
)
def test_number(response, strict, harness, flexible):
    found = {"strict": strict, "harness_flexible": harness, "flexible": flexible}
    assert number(response) == found


@pytest.mark.parametrize(
    "text, expected",
    [
        # written in many ways
        ("It is −5", "-5"), ("It is –5", "-5"), ("-$5", "-5"), ("$-5", "-5"), ("$-5$", "-5"),
        ("-$1,234.50", "-1234.5"), ("1.234e3", "1234"), ("1.2 \\times 10^{3}", "1200"),
        ("42%", "42"), ("４２", "42"), ("1 234", "1234"), ("1\u202f234", "1234"), ("1'234", "1234"),
        ("1,00,000", "100000"), ("1{,}234", "1234"), ("1.234,50 €", "1234.5"), ("12,50 €", "12.5"),
        ("3 1/2", "3.5"), ("1/3", "1/3"), ("\\frac{1}{2}", "0.5"), ("Rs.500", "500"), ("-0", "0"),
        ("5/0", "0"), ("1" * 5000, "1" * 5000), ("1/" + "3" * 5000, "1/" + "3" * 5000),
        # what is no number
        ("10-15", "15"), ("25 cm^2", "25"), ("25 m2", "25"), ("He sold 3 on the 2nd day", "3"),
        ("1, 2, 3", "3"), ("1,2,3", "3"), ("In 2019 300", "300"), ("v3.4.5 gives 7 ...", "7"),
        # stated, and then more is said
        ("He has 42...", "42"), ("The answer is 42. And so on ...", "42"), ("Answer: 7\n\n$$", "7"),
        ("72, in total", "72"), ("\\boxed{72}. This took 3 steps.", "72"),
        ("\\boxed{x = 5}", "5"), ("\\boxed{\\$1{,}234}", "1234"), ("\\boxed{" * 3 + "5}", "5"),
        ("**36** apples in 3 days", "36"), ("**2** + **3** = 5", "5"),
        ("**Answer:** $42$ dollars in 3 days", "42"), ("## Final Answer\n\n**42**\n\nSee 2.", "42"),
        ("The answer is the sum of 3 and 4, which is 7.", "7"), ("The answer is 3 + 4 = 7.", "7"),
        ("The answer is 10% of 50, so 5", "5"), ("The answer is not 5 but 7", "7"),
        ("The answer is 5? No, wait, the answer is 6: 2 and 4", "6"),
        ("#### 1. First we add\nThe answer is 5, in 2 steps.", "5"),
        ("答案是42。共3步", "42"), ("La respuesta correcta es 12. Fin 3", "12"),
    ],
)  # fmt: skip
def test_the_number_that_is_stated(text, expected):
    assert number(text)["flexible"] == expected


def test_numbers_are_compared_as_numbers_where_the_reading_is_our_own():
    assert comparable(" 1,234") == "1234" and comparable("$70.") == "70"
    assert [canonical(t) for t in ("$29.00", "070.", "-1/2", "B", "")] == [
        "29", "70", "-0.5", "B", "",
    ]  # fmt: skip
    found = right(number("#### 29.00"), "29")
    assert found == {"strict": False, "harness_flexible": False, "flexible": True}
    assert right(number("#### 3.50"), "3.50") == dict.fromkeys(found, True)
    assert right(number("none"), "3.50") == dict.fromkeys(found, False)


def test_the_majority_is_of_each_reading():
    def answer(text):
        extracted, more = number(text), {"tokens": 1, "steps": 1, "seconds": 1, "batch": 1}
        more |= {"question": 0, "decode_seconds": 1, "finish": "stop", "expected": "29.50"}
        return {"extracted": extracted, "correct": right(extracted, "29.50"), **more}

    found = summarize([answer("#### 29.5"), answer("#### 29.50"), answer("#### 29.5")])
    assert found["flexible"]["majority"] == 1 and found["harness_flexible"]["majority"] == 0
    assert found["strict"]["accuracy"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "response, strict, flexible",
    [
        ("So it is helium.\nThe answer is (B).", "B", "B"),
        ("The answer is (A). No. The answer is (C).", "C", "C"),
        ("the answer is (D)", None, "D"),
        ("**Answer: C**", None, "C"),
        ("**Answer:** C", None, "C"),
        ("Answer: (A)", None, "A"),
        ("answer: b", None, None),  # letters of options are capitals, or marked as letters
        ("The answer is (b).", None, "B"),
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


@pytest.mark.parametrize(
    "expected, texts",
    {
        "A": [
            "the answer is C_6H_6, option (A)", "The answer is (A), not (B).",
            "The answer is A, since option B violates parity.",
        ],
        "B": [
            "Answer: B, since option A violates energy conservation.", "Answer: `B`", "Answer: [B]",
            'The answer is "B".', "The answer is ‘B’.", "So the answer should be B.", "\\boxed{b}",
            "\\boxed{\\text{B) 5 kg}}", "The answer is \\( B \\).", "B is the answer, not C",
            "The answer is **(B) 5 kg**", "B) 5 kg", "(B) 5 kg", "I would go with option B.",
            "I think option B fits; options A and C do not.", "Ａｎｓｗｅｒ：Ｂ", "Answer B",
            "The answer is (B).\n\n(A) foo\n(B) bar\n(C) baz\n(D) qux", "Die Antwort ist B.",
            "The answer is most likely B", "La respuesta correcta es B.", "La réponse est (B)",
            "正确答案选B", "ответ: B", "정답은 B",
            "Answer: B\n\nOption A is wrong because the answer is 3 J.",
        ],
        "C": [
            "The answer is (C). Option A ignores the mass, and option B breaks parity.",
            "\\boxed{\\mathbf{C}}", "答案：（C）", "答案是C。", "option B is wrong, so C",
            "The answer is (A). Wait, that's wrong: the answer is (C).", "Answer: B. Actually, C.",
            "The answer is (C), and (A) is wrong", "C is correct.", "Answer: C - 4.5 eV",
            "Option: C",
            "Options A, B and D are wrong; C is the correct answer.", "A resposta é C",
        ],
        "D": [
            "The correct answer is A protein that folds, hence option (D)", "**Answer: D**",
            "\\boxed{\\Delta E}\n\n**Answer: D**", "It is not B, the answer is D", "This leaves D.",
            "Is the answer B? No, D.", "### Final Answer\n\n**(D)** foo", "I choose (D).",
        ],
        None: [
            "The correct answer is A protein that folds.", "The answer is a protein", "\\boxed{AB}",
            "The answer is A or B.", "The answer is either B or C.", "The answer is B and C",
            "\\boxed{B, C}", "\\boxed{A = 5}", "The answer is not B.", "The answer cannot be A",
            "(A) and (B) are both plausible.", "B is not correct", "There is no B.",
            "(A) foo\n(B) bar\n(C) baz\n(D) qux", "A. foo\nB. bar\nC. x\nD. y",
            "The answer is B cells",
        ],
    }.items(),
)  # fmt: skip
def test_the_option_that_is_chosen(expected, texts):
    assert {text: choice(text) for text in texts} == dict.fromkeys(texts, expected)


@pytest.mark.parametrize(
    "unit", ["\\boxed{", "answer: the ", "(A) ", "\n", "*", "####", "1,", "no, "]
)
def test_a_response_that_repeats_itself_is_read_in_little_time(unit):
    """A reading that takes the square of its length would take hours here, not a second."""
    text = unit * (30_000 // len(unit))
    number(text)
    letter(text)
