"""Finding the answer in a response, under several readings that are told apart by their names.

GSM8K: `strict` and `harness_flexible` are the two filters of lm-evaluation-harness' task `gsm8k`,
the same characters for the same text (a test compares them where the harness is installed), with
its comparison: without commas, dollar signs and one final full stop. Scores that others publish are
of these two. `flexible` is a reading of our own: the number that the response states, compared as a
number, see `numerals`. The harness' filter takes "29.00" for another answer than 29, and finds ".."
in "42 apples, and so on ...".

GPQA: `strict` is the convention of the harness' chain-of-thought tasks, an option's letter in
parentheses behind "The answer is"; `flexible` the option that the response chooses, see `choices`.

Every extractor returns the answer under each reading, None where there is none.
"""

import re

from scoring import choices, numerals

Extracted = dict[str, str | None]
STRICT, HARNESS_FLEXIBLE, FLEXIBLE = "strict", "harness_flexible", "flexible"
READINGS = (STRICT, HARNESS_FLEXIBLE, FLEXIBLE)
VERSION = 2
"""Raised when a reading finds another answer in some text: answers of two versions do not mix."""

_STRICT_NUMBER = re.compile(r"#### (\-?[0-9\.\,]+)")
_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED = re.compile(r",|\$|\.$")
_STRICT_LETTER = re.compile(r"The answer is \(([A-D])\)")


def number(response: str) -> Extracted:
    """The number that a GSM8K response ends with.

    Strict is the first one behind `####`, harness_flexible the last of the text, both as the
    harness compares them: see `comparable`. Flexible is the one of `numerals.answer`.
    """
    strict = _STRICT_NUMBER.search(response)
    last = [match.group() for match in _NUMBER.finditer(response)]
    return {
        STRICT: comparable(strict[1]) if strict else None,
        HARNESS_FLEXIBLE: comparable(last[-1]) if last else None,
        FLEXIBLE: numerals.answer(response),
    }


def comparable(text: str) -> str:
    """A number's text without commas, dollar signs and a full stop at its end."""
    return _IGNORED.sub("", text.strip())


def letter(response: str) -> Extracted:
    """The option, A to D, that a response chooses.

    Strict is the last `The answer is (X)`, flexible the one of `choices.choice`.
    """
    strict = _STRICT_LETTER.findall(response)
    return {STRICT: strict[-1] if strict else None, FLEXIBLE: choices.choice(response)}


def right(extracted: Extracted, expected: str) -> dict[str, bool]:
    """Whether the answer of each reading is the expected one; the flexible one as a number."""
    return {
        name: value == (numerals.canonical(expected) if name == FLEXIBLE else expected)
        for name, value in extracted.items()
    }
