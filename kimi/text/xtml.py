"""XTML, the markup of a Kimi K3 conversation.

An element is open, tag, attributes, sep, body, close, tag, sep. Open, close, sep and the end of a
message are control tokens; the rest is ordinary text. Every piece of text is encoded on its own,
so no text can turn into a control token, nor can a merge reach across a boundary.

Source: the segments of the checkpoint's encoding_k3.py. An attribute is four segments there
(` key`, `="`, value, `"`), which matters for a value that begins or ends with punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kimi.text.tokenizer import Tokenizer

# The model writes one space before an attribute and none elsewhere; more are forgiven.
_ATTRIBUTE = re.compile(r"\s+(\w+)\s*=\s*\"([^\"]*)\"", re.ASCII)
_TAG = re.compile(rf"(\w+)((?:{_ATTRIBUTE.pattern})*)", re.ASCII)


def escape(value: str) -> str:
    """Attribute value as written in a tag. The ampersand comes first, or `&quot;` would break."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


def unescape(value: str) -> str:
    """Inverse of `escape`."""
    return value.replace("&quot;", '"').replace("&amp;", "&")


def unicode_text(text: str) -> str:
    """The text with U+FFFD in place of each lone surrogate, which UTF-8 cannot express."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def parse_tag(text: str) -> tuple[str, dict[str, str]] | None:
    """Tag name and attributes of the text between open and sep, or None if it is no tag."""
    match = _TAG.fullmatch(text)
    if match is None:
        return None
    return match[1], {key: unescape(value) for key, value in _ATTRIBUTE.findall(match[2])}


@dataclass
class XtmlWriter:
    """Collects the ids of a conversation.

    Attributes:
      tokenizer: encodes the text pieces.
      ids: everything written so far.
    """

    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)

    def text(self, text: str) -> None:
        """One piece of ordinary text; see `unicode_text` for lone surrogates."""
        self.ids += self.tokenizer.encode(unicode_text(text))

    def open(self, tag: str, attributes: Mapping[str, str] | None = None) -> None:
        """Start of an element; attributes in the order given."""
        self.ids.append(self.tokenizer.special.open)
        self.text(tag)
        for key, value in (attributes or {}).items():
            self.text(f" {key}")
            self.text('="')
            self.text(escape(value))
            self.text('"')
        self.ids.append(self.tokenizer.special.sep)

    def close(self, tag: str) -> None:
        """End of an element."""
        self.ids.append(self.tokenizer.special.close)
        self.text(tag)
        self.ids.append(self.tokenizer.special.sep)

    def close_message(self) -> None:
        """End of a message element and of the message."""
        self.close("message")
        self.ids.append(self.tokenizer.special.end_of_msg)
