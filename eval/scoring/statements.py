"""Where a response says what its answer is: in a box, or behind the word "answer"."""

import re
from collections.abc import Iterator

_FULL_WIDTH = {0xFF01 + i: 0x21 + i for i in range(94)}
_DASHES = dict.fromkeys((0x2010, 0x2011, 0x2012, 0x2013, 0x2212, 0xFE63), "-")
_SPACES = dict.fromkeys((0xA0, 0x2007, 0x2009, 0x202F, 0x3000), " ")
_CHARACTERS = _FULL_WIDTH | _DASHES | _SPACES
_WORD = re.compile(
    r"\banswer|\brespuesta|\br[ée]ponse|\bantwort|\brisposta|\bresposta|\bantwoord|\bответ|"
    r"答案|答え|解答|回答|정답",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"\b(?:is|be|are|was|est|es|ist|is)\b|\b[èé]\b|[=:]|是|为|為|は|은|는|—", re.IGNORECASE
)
_NEGATION = re.compile(r"(?:\bnot|\bcannot|n't|\bnever|\bneither|不)\b[^,]*$", re.IGNORECASE)
_END = re.compile(r"[.!?;](?=\s|$)|\n")
_HEADING = re.compile(r"[*_ ]*\n")
_REACH = 80  # characters between the word and its verb
_BOX, _BOX_LENGTH = re.compile(r"\\f?boxed\s*\{"), 400


def plain_characters(text: str) -> str:
    """The text with ASCII's digits, letters, signs and spaces for full-width and typeset ones."""
    return text.translate(_CHARACTERS)


def statements(text: str) -> Iterator[int]:
    """Places behind "the answer is", "Answer:", a heading "Answer", and their like elsewhere.

    Not every place has an answer behind it: "the answer to that is: yes, it is" has three.
    """
    for word in _WORD.finditer(text):
        start = word.end()
        if heading := _HEADING.match(text, start):
            yield heading.end()
            continue
        rest = text[start : start + _REACH]
        end = _END.search(rest)
        for verb in _VERB.finditer(rest[: end.start() if end else None]):
            if not _NEGATION.search(rest[: verb.start()]):
                yield start + verb.end()


def boxes(text: str) -> Iterator[tuple[int, str]]:
    r"""Place and content of every `\boxed{...}` that is closed."""
    for match in _BOX.finditer(text):
        depth = 1
        inside = text[match.end() : match.end() + _BOX_LENGTH]
        for brace in re.finditer("[{}]", inside):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                yield match.start(), inside[: brace.start()]
                break
