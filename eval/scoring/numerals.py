"""Numbers as people write them, and the one that a response gives as its answer."""

import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

from scoring.statements import boxes, plain_characters, statements

_DECIMALS = r"(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3}(?![0-9A-Za-z]))?"
_DIGITS = (
    r"[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]{1,2}(?!,?[0-9])|"  # 1.234,50
    r"(?<![0-9],)[0-9]+,[0-9]{1,2}(?!,?[0-9])|"  # 2,5; but not in the list 1,2,3
    r"[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}(?![0-9])" + _DECIMALS + "|"
    r"[0-9]{1,3}(?:[ '][0-9]{3})+(?![0-9])" + _DECIMALS + "|"
    r"[0-9]+" + _DECIMALS + r"|\.[0-9]+"
)
# A minus behind a word, a number or a bracket is a hyphen, a range or a subtraction. Digits behind
# a letter, an exponent or an index are no number, nor are those of "2nd".
_NUMBER = re.compile(
    r"(?P<sign>(?<![-0-9A-Za-z)\]}%])-|\bnegative )?"
    r"(?:(?:\b(?:USD|EUR|GBP|Rs\.?)|(?:\bUS)?[$€£¥₹]+) ?(?P<inner>-)?|"
    r"(?<![0-9A-Za-z_^.])(?<![_^]\{))(?:"
    r"(?:(?P<mixed>[0-9]+) ?)?\\[dt]?frac\{(?P<above>[0-9]+)\}\{(?P<below>0*[1-9][0-9]*)\}|"
    r"(?:(?P<units>[0-9]+) )?(?P<over>[0-9]+)/(?P<under>0*[1-9][0-9]*)(?![0-9/])|"
    rf"(?>(?P<digits>{_DIGITS}))(?!(?:st|nd|rd|th)\b)"
    r"(?: ?(?:×|x|\\times|\\cdot) ?10\^\{?(?P<power>-?[0-9]{1,3})\}?)?)"
)
_LONGEST = 400  # digits of a number that is computed with
_MARK = re.compile(r"####")
_LEAD = re.compile(
    r"(?:[\s*_`\"'“”‘’(\[:=~≈]|\\[(\[]|\\(?:text|textbf|mathbf|mathrm)\{|"
    r"\b(?:about|approximately|exactly|only|just|simply|therefore|thus|then|a total of)\b){0,40}"
)
# What makes a number the beginning of a calculation, or of a heading behind a mark.
_GOES_ON = re.compile(
    r"[\s$%})]*(?:[-+*/×÷=^<>](?! ?\*)|\\(?:times|div|cdot|frac)|(?:of|or|and)\b)"
)
_HEADING = re.compile(r"[.)][ \t]+\S")
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")


def canonical(text: str) -> str:
    """The shortest form of a number: 29 of "$29.00", 0.5 of "1/2"; any other text as it is."""
    found = _NUMBER.fullmatch(_plain(text).strip().rstrip("."))
    return _value(found) if found else text


def answer(response: str) -> str | None:
    """The number that a response gives as its answer, in its shortest form.

    The last one that is said to be the answer: behind `####`, in a box, or behind "answer is" and
    the like. Where none is: of the last line with a number the only one in bold, else the last.
    """
    text = _plain(response)
    if stated := [*_stated(text), *_boxed(text)]:
        return max(stated)[1]
    for line in reversed(text.split("\n")):
        if found := _numbers(line):
            bold = [number for match in _BOLD.finditer(line) for number in _numbers(match[1])]
            return bold[0] if len(bold) == 1 else found[-1]
    return None


def _stated(text: str) -> Iterator[tuple[int, str]]:
    marks = {mark.end() for mark in _MARK.finditer(text)}
    for place in (*marks, *statements(text)):
        lead = _LEAD.match(text, place)
        found = _NUMBER.match(text, lead.end() if lead else place)
        if not found or _GOES_ON.match(text, found.end()):
            continue
        if place not in marks or not _HEADING.match(text, found.end()):
            yield found.start(), _value(found)


def _boxed(text: str) -> Iterator[tuple[int, str]]:
    for place, content in boxes(text):
        if found := _numbers(content.rpartition("=")[2]):
            yield place, found[0]


def _numbers(text: str) -> list[str]:
    return [_value(match) for match in _NUMBER.finditer(text)]


def _plain(text: str) -> str:
    """The text without what TeX puts into and around numbers."""
    text = plain_characters(text).replace("{,}", ",").replace("\\!", "")
    return re.sub(r"\\([$%#])", r"\1", re.sub(r"(?<=[0-9])\\[,; ](?=[0-9])", " ", text))


def _value(match: re.Match[str]) -> str:
    group = match.groupdict()
    sign = "-" if bool(group["sign"]) != bool(group["inner"]) else ""
    if len(match[0]) > _LONGEST:
        return sign + (group["digits"] or match[0])
    if digits := group["digits"]:
        if re.search(r",[0-9]{1,2}$", digits):  # the comma is the decimal point
            digits = digits.replace(".", "").replace(",", ".")
        value = Fraction(re.sub("[, ']", "", digits)) * Fraction(10) ** int(group["power"] or 0)
    else:
        above, below = group["above"] or group["over"], group["below"] or group["under"]
        value = Fraction(int(above), int(below)) + int(group["mixed"] or group["units"] or 0)
    return _shortest(-value if sign else value)


def _shortest(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    decimal = Decimal(value.numerator) / value.denominator
    return f"{decimal.normalize():f}" if Fraction(decimal) == value else str(value)
