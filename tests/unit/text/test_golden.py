"""Conversations and answers on which independent implementations of the chat format agree."""

import gzip
import hashlib
import json

import numpy as np
import pytest

from kimi.text.chat import encode_chat
from kimi.text.display import ChatDisplay
from kimi.text.response import ParsedResponse, parse_response
from tests.conftest import DATA

SHORT = 30  # ids of an answer that is cut everywhere; longer ones at a few positions
CUTS = 3


def read(name: str) -> list[dict]:
    return json.loads(gzip.decompress((DATA / "text" / f"{name}.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def answers() -> list[dict]:
    return read("parse")


def cuts(ids: list[int]) -> list[int]:
    """Places where an answer is cut: all, or some that differ from answer to answer."""
    if len(ids) <= SHORT:
        return list(range(len(ids) + 1))
    return np.random.default_rng(len(ids)).integers(0, len(ids), CUTS).tolist()


def parsed(tokenizer, answer: dict, end: int | None = None) -> ParsedResponse:
    start = "think" if answer["thinking"] else "response"
    return parse_response(answer["ids"][:end], tokenizer, start=start)


def test_conversations(tokenizer):
    chats = read("chat")
    assert len(chats) == 300
    for chat in chats:
        ids = encode_chat(chat["messages"], tokenizer, **chat["options"])
        assert tokenizer.decode(ids) == chat["text"]
        assert hashlib.sha256(np.array(ids, "<u4").tobytes()).hexdigest() == chat["ids_sha256"]


def test_answers(tokenizer, answers):
    assert len(answers) == 700
    for answer in answers:
        found = parsed(tokenizer, answer)
        calls = [[call.name, call.arguments] for call in found.tool_calls]
        assert [found.think, found.response, calls] == answer["want"]
        assert found.complete
        assert not found.extra


def test_answers_cut_anywhere(tokenizer, answers):
    """What there is of a channel is its beginning, and of the calls those that are complete."""
    for answer in answers:
        whole = parsed(tokenizer, answer)
        for cut in cuts(answer["ids"]):
            part = parsed(tokenizer, answer, cut)
            assert whole.think.startswith(part.think.rstrip("\ufffd"))
            assert whole.response.startswith(part.response.rstrip("\ufffd"))
            done = [call for call in part.tool_calls if call.complete]
            assert done == list(whole.tool_calls[: len(done)])
            assert len(part.tool_calls) - len(done) <= 1


def test_answers_shown_while_they_arrive(tokenizer, answers):
    """The same text whatever the pieces, without markup wherever it is cut."""
    for answer in answers:
        ids = answer["ids"]
        think, response, calls = answer["want"]
        whole = show(tokenizer, ids)
        text = f"{think}\n{response}" if think else response
        assert whole.startswith(text)
        assert whole.count('[call tool="') - text.count('[call tool="') >= len(calls)
        assert calls or whole == text
        for cut in cuts(ids):
            assert show(tokenizer, ids[:cut], ids[cut:]) == whole
            shown = show(tokenizer, ids[:cut]).rstrip("\ufffd")
            assert whole.startswith(shown)


def show(tokenizer, *pieces: list[int]) -> str:
    display = ChatDisplay(tokenizer)
    return "".join(map(display.push, pieces)) + display.finish()
