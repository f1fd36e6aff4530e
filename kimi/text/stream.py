"""Incremental detokenization: text as soon as its UTF-8 characters are complete."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import SupportsIndex

from kimi.text.tokenizer import Tokenizer


class StreamDecoder:
    """Converts a stream of ids to text.

    A token may end within a character, so its last bytes are held back until the rest arrives. The
    texts of all `push` calls and `finish`, joined, are `tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[SupportsIndex]) -> str:
        """The text that the ids complete, in whole characters.

        Raises: TokenizerError if an id is outside the vocabulary; nothing is consumed then.
        """
        return self._utf8.decode(self._tokenizer.decode_bytes(ids))

    def finish(self) -> str:
        """U+FFFD for bytes still held back, else an empty string. Resets the decoder."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest
