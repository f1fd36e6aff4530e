"""Answers and conversations, with a decoder that writes what it is told."""

import pytest

from kimi.answer import Answer
from kimi.assets import TINY_K3
from kimi.conversation import Chat, ChatFormat
from kimi.decoding.sampling import Sampling
from kimi.decoding.stats import Stats, Step
from kimi.errors import InputError
from kimi.text import Tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_dir(TINY_K3)


class Script:
    """A decoder whose answers are given; an exception in a step is raised there."""

    capacity = 512

    def __init__(self, tokenizer, *answers):
        self.tokenizer, self.answers, self.ended = tokenizer, list(answers), 0

    def generate(self, prompt, max_tokens, *, stats, **_):
        stats.prompt_tokens = len(prompt)
        return self.steps(self.answers.pop(0), stats)

    def steps(self, pieces, stats):
        for i, piece in enumerate(pieces):
            if isinstance(piece, BaseException):
                raise piece
            ids = self.tokenizer.encode(piece)
            if i == len(pieces) - 1:
                ids.append(self.tokenizer.special.end_of_msg)
                stats.finish = "stop"
            stats.add(Step(ids, len(ids), 0, None, 0.1))
            yield ids
        self.ended += 1


def answer(tokenizer, *pieces, channel=None, **options):
    script, stats = Script(tokenizer, pieces), Stats()
    steps = script.generate([1, 2, 3], 9, stats=stats)
    return Answer(steps, tokenizer, channel, stats, **options), script


def test_reading_goes_on_where_it_stopped(tokenizer):
    found, script = answer(tokenizer, "one ", "two ", "three")
    for text in found:
        assert text == "one "
        break
    assert repr(found) == f"Answer(prompt_tokens=3, tokens={len(found.ids)}, finish_reason=None)"
    assert next(found) == "two " and found.finish_reason is None
    assert list(found) == ["three"] and found.finish_reason == "stop" and script.ended == 1
    ids = list(found.ids)
    assert found.text == "one two three" and list(found) == [] and found.ids == ids


def test_the_end_is_told_once_and_with_the_last_piece(tokenizer):
    """Whoever stops reading at the last piece has read to the end."""
    ends = []
    found, script = answer(tokenizer, "one ", "two", at_end=ends.append)
    assert next(found) == "one " and not ends
    assert next(found) == "two" and ends == [found] and script.ended == 1
    assert found.text == "one two" and len(ends) == 1


def test_a_stop_string_over_two_steps_is_held_back(tokenizer):
    ends = []
    found, script = answer(tokenizer, "the en", "d is near", stops="end", at_end=ends.append)
    assert list(found) == ["the "] and found.finish_reason == "stop" and ends == [found]
    assert found.stats.tokens == len(found.ids) and script.ended == 0
    assert tokenizer.decode(found.ids) == "the end"
    found, _ = answer(tokenizer, "the en", stops="end")
    assert found.text == "the en"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_answer_says_so_when_read_again(tokenizer, kind):
    ends = []
    found, _ = answer(tokenizer, "ab", kind(), "cd", at_end=ends.append)
    with pytest.raises(kind):
        found.run()
    assert found.finish_reason is None and found.stats.tokens == len(found.ids) > 0 and not ends
    for again in (found.run, lambda: found.text, lambda: next(found), lambda: list(found)):
        with pytest.raises(InputError, match=f"interrupted behind {len(found.ids)} tokens"):
            again()


def chat_of(tokenizer, *answers):
    script = Script(tokenizer, *answers)

    def begin(ids, channel, max_tokens, *, turn, at_end, stop=(), **sampled):
        stats, _ = Stats(), Sampling(**sampled)
        steps = turn(script.generate(ids, max_tokens, stats=stats))
        return Answer(steps, tokenizer, channel, stats, stops=stop, at_end=at_end)

    return Chat(begin, tokenizer, ChatFormat(), script.capacity)


def contents(chat):
    return [message["content"] for message in chat.messages]


def test_reading_an_answer_again_leaves_later_turns(tokenizer):
    chat = chat_of(tokenizer, ["A"], ["B"])
    first = chat.say("a")
    first.run()
    chat.say("b").run()
    assert list(first) == [] and first.text == "A" and contents(chat) == ["a", "A", "b", "B"]


def test_an_answer_that_another_message_followed_is_over(tokenizer):
    """Two answers at once would each leave the other out."""
    chat = chat_of(tokenizer, ["A", "more"], ["B"])
    first = chat.say("a")
    next(first)
    second = chat.say("b")
    with pytest.raises(InputError, match="answer: expected the newest of the conversation, found"):
        first.run()
    assert second.text == "B" and contents(chat) == ["b", "B"]


def test_a_turn_that_cannot_be_asked_leaves_the_one_before(tokenizer):
    chat = chat_of(tokenizer, ["A", "more"], ["B"])
    first = chat.say("a")
    next(first)
    for wrong in ({"said": None}, {"said": " "}, {"said": "b", "top_p": 2}):
        with pytest.raises(InputError):
            chat.say(**wrong)
    with pytest.raises(InputError, match="stop: expected"):
        chat.say("b", stop=[""])
    assert list(first) == ["more"] and contents(chat) == ["a", "Amore"]


def test_an_interrupted_turn_leaves_no_trace(tokenizer):
    chat = chat_of(tokenizer, ["A"], ["B", KeyboardInterrupt()], ["C"])
    chat.say("a").run()
    broken = chat.say("b")
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    with pytest.raises(InputError, match="interrupted"):
        broken.run()
    assert contents(chat) == ["a", "A"]
    assert chat.say("c").text == "C" and contents(chat) == ["a", "A", "c", "C"]
    assert repr(chat) == "Chat(messages=4, room=512)"


def test_a_stop_string_cuts_the_message_that_is_kept(tokenizer):
    chat = chat_of(tokenizer, ["one, two", ", three"])
    assert chat.say("a", stop=", t").text == "one" and contents(chat) == ["a", "one"]
