"""Finding the answer in a response.

GSM8K: the two filters of lm-evaluation-harness' task `gsm8k`, the same characters for the same
text (a test compares them where the harness is installed). Its comparison too: without commas,
dollar signs and one final full stop.

GPQA: the convention of its chain-of-thought tasks, an option's letter in parentheses.

Every extractor returns the answer under each convention, None where there is none.
"""

import re

Extracted = dict[str, str | None]
STRICT, FLEXIBLE = "strict", "flexible"
CONVENTIONS = (STRICT, FLEXIBLE)

_STRICT_NUMBER = re.compile(r"#### (\-?[0-9\.\,]+)")
_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED = re.compile(r",|\$|\.$")

LETTERS = "ABCD"
# Emphasis and TeX around a letter: **B**, \boxed{B}, \text{B}, $B$.
_OPEN, _CLOSE = r"[\s(*_$]*(?:\\(?:boxed|text|textbf|mathrm)\{)*[\s(*_]*", r"(?![-A-Za-z0-9'’])"
_STRICT_LETTER = re.compile(r"The answer is \(([A-D])\)")
_NAMED = re.compile(
    rf"(?i:\banswer|\bchoice|\boption)(?i:\s+is|\s*[:=])*{_OPEN}([A-D]){_CLOSE}|"
    rf"\\boxed\{{\s*(?:\\(?:text|textbf|mathrm)\{{)?\(?([A-D]){_CLOSE}"
)
_PARENTHESES = re.compile(r"\(([A-D])\)")
_ALONE = re.compile(rf"^{_OPEN}([A-D])[\s)*_.$}}]*$", re.MULTILINE)


def number(response: str) -> Extracted:
    """The number that a GSM8K response ends with.

    Strict is the first one behind `####`, flexible the last number of the text. Both as they are
    compared: see `comparable`.
    """
    strict = _STRICT_NUMBER.search(response)
    flexible = [match.group() for match in _NUMBER.finditer(response)]
    return {
        STRICT: comparable(strict[1]) if strict else None,
        FLEXIBLE: comparable(flexible[-1]) if flexible else None,
    }


def comparable(text: str) -> str:
    """A number's text without commas, dollar signs and a full stop at its end."""
    return _IGNORED.sub("", text.strip())


def letter(response: str) -> Extracted:
    """The option, A to D, that a response chooses.

    Strict is the last `The answer is (X)`. Flexible takes the first of these that occurs, and of
    it the last place: a letter behind "answer", "choice" or "option" or in a box; a letter in
    parentheses; a line of nothing but a letter.
    """
    strict = _STRICT_LETTER.findall(response)
    return {STRICT: strict[-1] if strict else None, FLEXIBLE: _flexible_letter(response)}


def _flexible_letter(response: str) -> str | None:
    for pattern in (_NAMED, _PARENTHESES, _ALONE):
        found = [match for match in pattern.finditer(response)]
        if found:
            return next(group for group in found[-1].groups() if group)
    return None
