"""Stop strings: where a streamed text ends, found as soon as it is there."""

from __future__ import annotations

from collections.abc import Sequence

from kimi.errors import InputError


class StopStrings:
    """Cuts a text that arrives in pieces before the first stop string that is completed in it.

    Of several strings completed by the same character the longest counts. What comes out, joined,
    does not depend on how the text was cut into pieces: `text = stops.push(piece)` for each piece
    until `stops.found`, then `stops.finish()`.

    Attributes:
      found: the stop string that ended the text, or None so far.

    Args:
      stops: one string or several; with none, every text passes.

    Raises: InputError if one of them is empty or no text.
    """

    def __init__(self, stops: str | Sequence[str]) -> None:
        if not isinstance(stops, str | list | tuple):
            raise InputError(f"stop: expected a text or a list of texts, found {stops!r:.80}")
        # The longest first: it is the one that `min` keeps among those with the same end.
        listed = [stops] if isinstance(stops, str) else stops
        for stop in listed:
            if not isinstance(stop, str) or not stop:
                raise InputError(f"stop: expected texts that are not empty, found {stop!r:.80}")
        self._stops = sorted(listed, key=len, reverse=True)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Text that may be shown; what may be the beginning of a stop string is held back."""
        if self.found is not None:
            return ""
        text = self._held + text
        ends = [(at + len(s), s) for s in self._stops if (at := text.find(s)) >= 0]
        if ends:
            end, self.found = min(ends, key=lambda e: e[0])
            self._held = ""
            return text[: end - len(self.found)]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        shown = len(text) - kept
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """What is still held back when the text ends by itself; a second call returns nothing."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
