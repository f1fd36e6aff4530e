"""Stop strings of a streamed text."""

from __future__ import annotations

from collections.abc import Sequence

from kimi.errors import InputError
from kimi.values import shown


class StopStrings:
    """Truncates a streamed text before the first stop string that is completed in it.

    If one character completes several, the longest counts. Call `push` for each piece until `found`
    is set, then `finish`; the joined results do not depend on how the text is split into pieces.

    Attributes:
      found: the stop string that ended the text; None so far.

    Args:
      stops: one string or several; none to pass all text.

    Raises: InputError if one of them is empty or not a string.
    """

    def __init__(self, stops: str | Sequence[str]) -> None:
        if not isinstance(stops, str | list | tuple):
            raise InputError(f"stop: expected a text or a list of texts, found {shown(stops)}")
        listed = [stops] if isinstance(stops, str) else stops
        for stop in listed:
            if not isinstance(stop, str) or not stop:
                raise InputError(f"stop: expected texts that are not empty, found {shown(stop)}")
        # The longest first: of those with the same end, `min` keeps the first.
        self._stops = sorted(listed, key=len, reverse=True)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Text to show; what may be the beginning of a stop string is held back."""
        if self.found is not None:
            return ""
        text = self._held + text
        ends = [(at + len(s), s) for s in self._stops if (at := text.find(s)) >= 0]
        if ends:
            end, self.found = min(ends, key=lambda e: e[0])
            self._held = ""
            return text[: end - len(self.found)]
        end = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[end:]
        return text[:end]

    def finish(self) -> str:
        """The text still held back when the stream ends; a second call returns nothing."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
