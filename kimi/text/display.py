"""A generated message as a person wants to read it while it is being written."""

from collections.abc import Iterable

from kimi.text.items import CLOSE, OPEN, IdItems, Item
from kimi.text.tokenizer import Tokenizer

_CHANNELS = ("think", "response", "tools")
_TAGS = (*_CHANNELS, "call", "argument", "json", "message")


class ChatDisplay:
    """Streams a message without its markup.

    Tags (between open or close and sep) are not shown; where a new channel or call opens, a line
    says so. Everything else is shown as soon as its characters are complete. What is shown does
    not depend on how the ids are cut. For machine use take the ids and `parse_response` instead.

    Args:
      tokenizer: the checkpoint's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._items = IdItems(tokenizer)
        self._begin()

    def push(self, ids: Iterable[int]) -> str:
        """What to print after the ids that have just been generated.

        Raises: TokenizerError if an id is outside the vocabulary; nothing is consumed then.
        """
        return "".join(map(self._show, self._items.push(ids)))

    def finish(self) -> str:
        """U+FFFD for bytes that never became a character; then ready for a new message."""
        rest = "".join(map(self._show, self._items.finish()))
        self._begin()
        return rest

    def _begin(self) -> None:
        # The prompt opened the first channel, most often this one.
        self._channel = "think"
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
        """A new channel starts on a line of its own; calls and arguments show their tag."""
        if tag in _CHANNELS:
            if tag == self._channel:
                return ""
            self._channel = tag
        start = "\n" if self._shown else ""
        self._shown = False
        return start if tag in _CHANNELS else f"{start}[{tag}] "


def _begins_tag(text: str) -> bool:
    """Whether text behind a marker is the beginning of a tag, and not prose behind a stray one."""
    text = text.lstrip()
    return any(tag.startswith(text) or text.startswith(tag) for tag in _TAGS)
