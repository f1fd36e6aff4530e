"""Splits a generated message into tags, markers and text, as they arrive."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kimi.text.stream import StreamDecoder
from kimi.text.tokenizer import Tokenizer
from kimi.text.xtml import parse_tag, unicode_text

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
_MARKERS = re.compile("(" + "|".join(map(re.escape, (OPEN, CLOSE, SEP, END))) + ")")


@dataclass(frozen=True)
class Item:
    """A tag, a marker or a piece of text.

    Attributes:
      text: the text, or that between the markers of a tag.
      marker: "" for text, open or close for a tag, sep or end for a marker outside a tag.
      whole: False for a tag without its sep.
      cut: whether the message or the output ends within such a tag.
    """

    text: str
    marker: str = ""
    whole: bool = True
    cut: bool = False

    @property
    def raw(self) -> str:
        """The item as written, markers by name."""
        is_tag = self.marker in (OPEN, CLOSE)
        return self.marker + self.text + (SEP if is_tag and self.whole else "")

    @property
    def tag(self) -> tuple[str, dict[str, str]]:
        """Name of a tag, `/name` for a closing one, and its attributes; "" if it is not a tag."""
        parsed = parse_tag(self.text) if self.whole and self.marker in (OPEN, CLOSE) else None
        if parsed is None or (self.marker == CLOSE and parsed[1]):
            return "", {}
        name, attributes = parsed
        return ("/" if self.marker == CLOSE else "") + name, attributes


class ItemReader:
    """Joins the pieces of each tag. Yields text at once, a tag when it is complete."""

    def __init__(self) -> None:
        self._marker = ""
        self._tag: list[str] = []

    def text(self, text: str) -> Iterator[Item]:
        """Reads ordinary text."""
        if not text:
            return
        if self._marker:
            self._tag.append(text)
        else:
            yield Item(text)

    def marker(self, marker: str) -> Iterator[Item]:
        """Reads one of the four markers."""
        if self._marker and marker == SEP:
            yield self._take(whole=True)
            return
        if self._marker:
            yield self._take(cut=marker == END)
        if marker in (OPEN, CLOSE):
            self._marker = marker
        else:
            yield Item("", marker)

    def finish(self) -> Iterator[Item]:
        """The tag that the end of the output truncates, if any. Resets the reader."""
        if self._marker:
            yield self._take(cut=True)

    def _take(self, whole: bool = False, cut: bool = False) -> Item:
        item = Item("".join(self._tag), self._marker, whole, cut)
        self._marker, self._tag = "", []
        return item


class IdItems:
    """The items of a stream of ids, of which the tokenizer's stop ids end the message."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = tokenizer.special
        self._markers = {special.open: OPEN, special.close: CLOSE, special.sep: SEP}
        self._markers |= dict.fromkeys(tokenizer.stop_ids, END)
        self._tokenizer = tokenizer
        self._text = StreamDecoder(tokenizer)
        self._reader = ItemReader()

    def push(self, ids: Iterable[int]) -> list[Item]:
        """The items that the ids complete.

        Raises: TokenizerError if an id is outside the vocabulary; nothing is consumed then.
        """
        items: list[Item] = []
        for token in self._tokenizer.check_ids(ids):
            marker = self._markers.get(token)
            if marker is None:
                items += self._reader.text(self._text.push([token]))
            else:
                # A character does not continue after a marker.
                items += self._reader.text(self._text.finish())
                items += self._reader.marker(marker)
        return items

    def finish(self) -> list[Item]:
        """The items left at the end of the output. Resets the reader."""
        return [*self._reader.text(self._text.finish()), *self._reader.finish()]


def text_items(text: str) -> list[Item]:
    """The items of a whole text in which markers are written by name."""
    reader = ItemReader()
    items: list[Item] = []
    # The pattern has one group, so the odd pieces are the markers.
    for i, piece in enumerate(_MARKERS.split(unicode_text(text))):
        items += reader.marker(piece) if i % 2 else reader.text(piece)
    return [*items, *reader.finish()]
