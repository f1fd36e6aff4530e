"""XTML, the markup of a Kimi K3 conversation.

An element is open, tag, attributes, sep, body, close, tag, sep. Open, close, sep and the end of a
message are control tokens; the rest is ordinary text. Every piece of text is encoded separately,
so that no text becomes a control token and no merge crosses a boundary.

Source: the segments of the checkpoint's encoding_k3.py. An attribute is four segments there
(` key`, `="`, value, `"`), which matters for a value that begins or ends with punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kimi.text.tokenizer import Tokenizer

# The model writes one space before an attribute and none elsewhere; more are accepted.
_ATTRIBUTE = re.compile(r"\s+(\w+)\s*=\s*\"([^\"]*)\"", re.ASCII)
_TAG = re.compile(rf"(\w+)((?:{_ATTRIBUTE.pattern})*)", re.ASCII)


def escape(value: str) -> str:
    """Escapes an attribute value; the ampersand first, as `&quot;` contains one."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


def unescape(value: str) -> str:
    """Inverse of `escape`."""
    return value.replace("&quot;", '"').replace("&amp;", "&")


def unicode_text(text: str) -> str:
    """Replaces each lone surrogate, which UTF-8 cannot encode, by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def parse_tag(text: str) -> tuple[str, dict[str, str]] | None:
    """Name and attributes in the text between open and sep, or None if it is not a tag."""
    match = _TAG.fullmatch(text)
    if match is None:
        return None
    return match[1], {key: unescape(value) for key, value in _ATTRIBUTE.findall(match[2])}


@dataclass
class XtmlWriter:
    """Collects the token ids of a conversation in `ids`."""

    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)

    def text(self, text: str) -> None:
        """Writes a piece of ordinary text; lone surrogates as `unicode_text` does."""
        self.ids += self.tokenizer.encode(unicode_text(text))

    def open(self, tag: str, attributes: Mapping[str, str] | None = None) -> None:
        """Writes the start of an element."""
        self.ids.append(self.tokenizer.special.open)
        self.text(tag)
        for key, value in (attributes or {}).items():
            for segment in (f" {key}", '="', escape(value), '"'):
                self.text(segment)
        self.ids.append(self.tokenizer.special.sep)

    def close(self, tag: str) -> None:
        """Writes the end of an element."""
        self.ids.append(self.tokenizer.special.close)
        self.text(tag)
        self.ids.append(self.tokenizer.special.sep)

    def close_message(self) -> None:
        """Writes the end of a message element and of the message."""
        self.close("message")
        self.ids.append(self.tokenizer.special.end_of_msg)
