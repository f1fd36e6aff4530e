"""Incremental detokenisation: text as soon as its UTF-8 characters are complete."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import SupportsIndex

from kimi.text.tokenizer import Tokenizer


class StreamDecoder:
    """Turns ids that arrive a few at a time into text.

    A token may end inside a character, so its last bytes are held back until the rest arrives. All
    the pushed texts and the finish, joined, are `tokenizer.decode` of all the ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[SupportsIndex]) -> str:
        """Text that the ids complete; never a part of a character.

        Raises: TokenizerError if an id is outside the vocabulary; nothing is consumed then.
        """
        return self._utf8.decode(self._tokenizer.decode_bytes(ids))

    def finish(self) -> str:
        """U+FFFD for bytes still held back, else the empty string; then ready for a new text."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest
