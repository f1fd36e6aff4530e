"""Text and token ids: the tokenizer, streaming detokenisation and the chat format."""

from kimi.text.chat import encode_chat
from kimi.text.response import ParsedResponse, ToolCall, parse_response
from kimi.text.stop import StopStrings
from kimi.text.stream import StreamDecoder
from kimi.text.tokenizer import SpecialIds, Tokenizer

__all__ = [
    "ParsedResponse",
    "SpecialIds",
    "StopStrings",
    "StreamDecoder",
    "Tokenizer",
    "ToolCall",
    "encode_chat",
    "parse_response",
]
