"""The option, A to D, that a response chooses, however it speaks about the others."""

import re
from collections.abc import Iterable, Iterator

from scoring.statements import boxes, plain_characters, statements

LETTERS = "ABCD"
_WRAPPING = r"[\s*_`\"'“”‘’$({}\[]|\\[(\[]|\\[a-z]+\{"  # emphasis, quotes, brackets, TeX
_FILLING = (
    r"\b(?:the|an?|option|choice|letter|answer|clearly|definitely|probably|likely|most|therefore|"
    r"thus|indeed)\b(?=\W+)|:"
)
_BECAUSE = (
    r"(?:because|since|as|for|due|given|based|which|where|while|whereas|not|rather|but|so|"
    r"therefore|hence|thus|if|by|from|with|and|in|according|per)\b"
)
# No letter of a word or of a formula ("D-glucose", "C_6", "A = 5"), no article ("A protein"), no
# noun's adjective ("B cells"), and no question.
_LETTER = (
    r"(?P<letter>[A-D]|(?<=[(*{`\[])[a-d](?=[)*}`\]]))(?![-0-9A-Za-zÀ-ɏ^]|['’][a-z]|_[0-9{]| ?=)"
    rf"(?! (?!(?i:{_BECAUSE}))[A-Za-z])(?![)*_]*\?)"
)
_CHOICE = re.compile(rf"(?:{_WRAPPING}|(?i:{_FILLING})){{0,40}}?{_LETTER}")
_ANOTHER = re.compile(
    r"[)*_\s\]]*(?:[/&]|\b(?:or|oder|ou|y|und|et)\b|,|\band\b(?! not))\s*(?:option )?[(*_]*[A-D]\b"
    r"(?!-|[)*_]*\s+[a-z])"
)
_CHOSEN = re.compile(
    r"\b(?:choice|option|solution)(?: (?:is|must be|should be|would be)\b|:)|选择?", re.I
)
_BARE = re.compile(r"\banswer\s*(?=[(*\[])|\banswer (?=[A-D]\W*$)", re.I | re.M)
_CORRECTION = re.compile(
    r"\b(?:(?:actually|wait|correction|sorry|instead|rather),?|no,) (?:it(?:'s| is| must be))?",
    re.I,
)
_CONCLUSION = re.compile(
    r"\b(?:so|hence|thus|therefore|leaving|leaves|choose|pick|select|go(?:ing)? with|"
    r"it(?:'s| is| must be| should be))\b,?(?: (?:it|this|that)(?:'s| is| must be| leaves))?",
    re.I,
)
_PRAISED = re.compile(
    r"(?<![A-Za-z0-9-])([A-D])[)*_]*(?: is|, being)(?: (?:clearly|therefore|thus|indeed|the|only))*"
    r" (?:correct|right|best|true|answer)\b( answer| option| choice|(?<=answer))?"
)
_MENTION = re.compile(r"\((?P<bracketed>[A-D])\)|\b(?:[Oo]ption|[Cc]hoice) (?P<named>[A-D])\b")
_REJECTED = re.compile(
    r"[)*_\s]*(?:(?:is|are|was|can be|would be|seems)\s+)?(?:not\b|wrong|incorrect|false|too\b|"
    r"im|un|exclud|ruled|elimin|cannot|can't|does(?:n't| not)|violat|ignor|contra|fail|break)",
    re.I,
)
_LABEL = re.compile(r"^[ \t*_]*(\(?)([A-D])[*_]*[).:](?=[*_]* +\S)", re.MULTILINE)
_ALONE = re.compile(r"^(?:[ \t*_$({\[]|\\[a-z]+\{)*([A-D])[ \t)*_.$}\]]*$", re.MULTILINE)


def choice(response: str) -> str | None:
    """The option that a response chooses; None where it chooses none, or several.

    The last one that is said to be the answer: in a box, behind "answer is" and the like, or as
    "C is the answer". Where none is: the last conclusion ("so C"); the only letter alone on a line;
    the only option that is named in the last line that names any, and not rejected there.
    """
    text = plain_characters(response)
    for find in (_stated, _concluded):
        if found := list(find(text)):
            return max(found)[1].upper()
    labels = _LABEL.findall(text)
    if len({letter for _, letter in labels}) > 1:  # the options once more
        text = "\n".join(line for line in text.split("\n") if not _LABEL.match(line))
    return (
        _only(_ALONE.findall(text))
        or _mentioned(text)
        or _only(letter for bracket, letter in labels if not bracket)
    )


def _stated(text: str) -> Iterator[tuple[int, str]]:
    places = [*statements(text)]
    for pattern in (_CHOSEN, _BARE, _CORRECTION):
        places += [match.end() for match in pattern.finditer(text)]
    yield from _at(text, places)
    for place, content in boxes(text):
        for _, letter in _at("{" + content + "}", [0]):
            yield place, letter
    yield from ((m.start(), m[1]) for m in _PRAISED.finditer(text) if m[2] is not None)


def _concluded(text: str) -> Iterator[tuple[int, str]]:
    yield from _at(text, [match.end() for match in _CONCLUSION.finditer(text)])
    yield from ((match.start(), match[1]) for match in _PRAISED.finditer(text))


def _at(text: str, places: Iterable[int]) -> Iterator[tuple[int, str]]:
    """The letters that stand at these places, unless another one is offered beside them."""
    for place in places:
        found = _CHOICE.match(text, place)
        if found and not _ANOTHER.match(text, found.end()):
            yield found.start("letter"), found["letter"]


def _only(letters: Iterable[str | None]) -> str | None:
    distinct = set(letters) - {None}
    return distinct.pop() if len(distinct) == 1 else None


def _mentioned(text: str) -> str | None:
    for line in reversed(text.split("\n")):
        found = list(_MENTION.finditer(line))
        if found:
            return _only(
                m["bracketed"] or m["named"] for m in found if not _REJECTED.match(line, m.end())
            )
    return None
