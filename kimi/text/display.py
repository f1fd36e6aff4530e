"""A generated message as a person wants to read it while it is being written."""

from collections.abc import Iterable

from kimi.text.stream import StreamDecoder
from kimi.text.tokenizer import Tokenizer


class ChatDisplay:
    """Streams a message without its markup.

    Tags (between open or close and sep) are not shown; where a new channel or call opens, a line
    says so. Everything else is shown as soon as its characters are complete. For machine use take
    the ids and `parse_response` instead.

    Args:
      tokenizer: the checkpoint's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = StreamDecoder(tokenizer)
        self._tag: list[int] | None = None
        self._opening = False
        self._shown = False

    def push(self, ids: Iterable[int]) -> str:
        """What to print after the ids that have just been generated."""
        return "".join(self._push_one(i) for i in ids)

    def finish(self) -> str:
        """The rest: a tag that was cut off, or bytes that never became a character."""
        rest = self._text.finish()
        if self._tag:
            rest += self._tokenizer.decode(self._tag)
        self._tag = None
        return rest

    def _push_one(self, token: int) -> str:
        special = self._tokenizer.special
        if token in (special.open, special.close):
            cut = self.finish()
            self._tag, self._opening = [], token == special.open
            return cut
        if self._tag is not None:
            if token != special.sep:
                self._tag.append(token)
                return ""
            name = self._tokenizer.decode(self._tag)
            self._tag = None
            return self._heading(name) if self._opening else ""
        if token in self._tokenizer.stop_ids:
            return self._text.finish()
        text = self._text.push([token])
        self._shown |= bool(text)
        return text

    def _heading(self, tag: str) -> str:
        """A new channel starts on a line of its own; calls and arguments show their tag."""
        start = "\n" if self._shown else ""
        self._shown = False
        return f"{start}" if tag in ("response", "think", "tools") else f"{start}[{tag}] "
