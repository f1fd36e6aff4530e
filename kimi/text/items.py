"""The tags, markers and stretches of text that a generated message is made of, as they arrive."""

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
    """A piece of a message.

    Attributes:
      text: of a tag what stands between its markers, else the text itself.
      marker: what it begins with: "" for text, open or close for a tag, sep or end standing alone.
      whole: False for a tag without its sep.
      cut: True for such a tag if the message or the output ends in it.
    """

    text: str
    marker: str = ""
    whole: bool = True
    cut: bool = False

    @property
    def raw(self) -> str:
        """The piece as written, markers by name."""
        is_tag = self.marker in (OPEN, CLOSE)
        return self.marker + self.text + (SEP if is_tag and self.whole else "")

    @property
    def tag(self) -> tuple[str, dict[str, str]]:
        """Name of a tag, `/name` for a close one, and its attributes; "" if it is none."""
        parsed = parse_tag(self.text) if self.whole and self.marker in (OPEN, CLOSE) else None
        if parsed is None or (self.marker == CLOSE and parsed[1]):
            return "", {}
        name, attributes = parsed
        return ("/" if self.marker == CLOSE else "") + name, attributes


class ItemReader:
    """Joins the pieces of each tag. Text comes at once, a tag when it is over."""

    def __init__(self) -> None:
        self._marker = ""
        self._tag: list[str] = []

    def text(self, text: str) -> Iterator[Item]:
        """Ordinary text."""
        if not text:
            return
        if self._marker:
            self._tag.append(text)
        else:
            yield Item(text)

    def marker(self, marker: str) -> Iterator[Item]:
        """One of the four markers."""
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
        """What is left at the end of the output; then ready for a new one."""
        if self._marker:
            yield self._take(cut=True)

    def _take(self, whole: bool = False, cut: bool = False) -> Item:
        item = Item("".join(self._tag), self._marker, whole, cut)
        self._marker, self._tag = "", []
        return item


class IdItems:
    """The items of ids that arrive a few at a time.

    Args:
      tokenizer: the checkpoint's. Its stop ids are ends of the message.
    """

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
                # A character never reaches across a marker.
                items += self._reader.text(self._text.finish())
                items += self._reader.marker(marker)
        return items

    def finish(self) -> list[Item]:
        """What is left at the end of the output; then ready for a new one."""
        return [*self._reader.text(self._text.finish()), *self._reader.finish()]


def text_items(text: str) -> list[Item]:
    """The items of a whole text in which markers are spelled out."""
    reader = ItemReader()
    items: list[Item] = []
    # The pattern has one group, so the markers are at the odd places.
    for i, piece in enumerate(_MARKERS.split(unicode_text(text))):
        items += reader.marker(piece) if i % 2 else reader.text(piece)
    return [*items, *reader.finish()]
