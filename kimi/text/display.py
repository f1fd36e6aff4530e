"""Streams a generated message in readable form."""

from collections.abc import Iterable

from kimi.text.items import CLOSE, OPEN, IdItems, Item
from kimi.text.tokenizer import Tokenizer

_CHANNELS = ("think", "response", "tools")
_TAGS = (*_CHANNELS, "call", "argument", "json", "message")


class ChatDisplay:
    """Streams a message without its markup.

    Tags (between open or close and sep) are not shown; a heading marks each new channel or call.
    All other text is shown as soon as its characters are complete, independently of how the ids
    are split. Programs use `parse_response` instead.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._items = IdItems(tokenizer)
        self._begin()

    def push(self, ids: Iterable[int]) -> str:
        """The text to print for newly generated ids.

        Raises: TokenizerError if an id is outside the vocabulary; nothing is consumed then.
        """
        return "".join(map(self._show, self._items.push(ids)))

    def finish(self) -> str:
        """U+FFFD for an incomplete character at the end. Resets the display."""
        rest = "".join(map(self._show, self._items.finish()))
        self._begin()
        return rest

    def _begin(self) -> None:
        self._channel = "think"  # usually opened by the prompt
        self._shown = False

    def _show(self, item: Item) -> str:
        if item.marker == OPEN and item.whole:
            return self._heading(item.text)
        text = item.text
        if item.marker == CLOSE and item.whole or not item.whole and _begins_tag(text):
            return ""
        self._shown |= bool(text)
        return text

    def _heading(self, tag: str) -> str:
        """A line break before a new channel; the tag of a call or an argument."""
        if tag in _CHANNELS:
            if tag == self._channel:
                return ""
            self._channel = tag
        start = "\n" if self._shown else ""
        self._shown = False
        return start if tag in _CHANNELS else f"{start}[{tag}] "


def _begins_tag(text: str) -> bool:
    """Whether the text after a marker is the beginning of a tag, rather than prose."""
    text = text.lstrip()
    return any(tag.startswith(text) or text.startswith(tag) for tag in _TAGS)
