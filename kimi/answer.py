"""Answers while they are being written."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Literal

from kimi.decoding.stats import Stats
from kimi.errors import InputError
from kimi.progress import announced
from kimi.text import ParsedResponse, StopStrings, StreamDecoder, Tokenizer, parse_response
from kimi.text.display import ChatDisplay

Channel = Literal["think", "response"]


class Answer:
    """One answer while it is being written: an iterator over its text, as a person reads it.

    A piece comes as soon as its characters are complete and can be no part of a stop string.
    Reading again resumes where reading stopped. The properties below run the generation to its
    end first.

    Args:
      steps: token ids of every step, which fill in `stats`.
      tokenizer: of the model.
      channel: that the prompt opened, in the chat format; None continues plain text.
      stats: of the decoding.
      stops: end the text before the first of them, and the ids with the token that completes it.
      at_end: called once, when the answer has ended by itself and before its last piece is given
        out.

    Attributes:
      ids: int token ids so far, the stop id included.
      stats: of the decoding so far.
    """

    def __init__(
        self,
        steps: Iterator[list[int]],
        tokenizer: Tokenizer,
        channel: Channel | None,
        stats: Stats,
        *,
        stops: str | Sequence[str] = (),
        at_end: "Callable[[Answer], None]" = lambda answer: None,
    ) -> None:
        self.ids: list[int] = []
        self.stats = stats
        self._tokenizer, self._channel, self._at_end = tokenizer, channel, at_end
        self._show = (StreamDecoder if channel is None else ChatDisplay)(tokenizer)
        self._hidden = tokenizer.stop_ids if channel is None else frozenset()
        self._stop_strings, self._stops = stops, StopStrings(stops)
        self._ended = False
        self._pieces = self._read(steps)

    @property
    def is_chat(self) -> bool:
        """Whether the answer is a message in the chat format."""
        return self._channel is not None

    @property
    def text(self) -> str:
        """What the model answers: the response channel of a chat, without reasoning and markup; or
        the text that continues a plain prompt. Without the stop string that ended it."""
        return self._message.response

    @property
    def reasoning(self) -> str:
        """What the model thinks before it answers; empty with thinking off."""
        return self._message.think

    @property
    def tool_calls(self) -> list[dict[str, object]]:
        """The calls of tools, as in the message of a chat completion."""
        calls = self.message.get("tool_calls", [])
        assert isinstance(calls, list)
        return calls

    @property
    def message(self) -> dict[str, object]:
        """The answer as a message of a conversation, in the shape of chat completions."""
        return self._message.to_message()

    @property
    def finish_reason(self) -> str | None:
        """Why it ended: "stop", "length" or "tool_calls"; None before that, or if it was
        interrupted. Does not run the generation."""
        if self.stats.finish == "stop" and self._ended and self._message.tool_calls:
            return "tool_calls"
        return self.stats.finish or None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self._ended and getgeneratorstate(self._pieces) == GEN_CLOSED:
            raise InputError(
                f"answer: expected one that can go on, found one interrupted behind "
                f"{len(self.ids)} tokens: generate again"
            )
        return next(self._pieces)

    def run(self) -> "Answer":
        """Runs the generation to its end."""
        for _ in self:
            pass
        return self

    def __repr__(self) -> str:
        return (
            f"Answer(prompt_tokens={self.stats.prompt_tokens}, tokens={len(self.ids)}, "
            f"finish_reason={self.finish_reason!r})"
        )

    @cached_property
    def _message(self) -> ParsedResponse:
        if not self._ended:
            self.run()
        stops = StopStrings(self._stop_strings)
        if self._channel is None:
            text = self._tokenizer.decode([i for i in self.ids if i not in self._hidden])
            return ParsedResponse("", stops.push(text) + stops.finish(), (), "", True)
        parsed = parse_response(self.ids, self._tokenizer, start=self._channel)
        think = stops.push(parsed.think) + stops.finish()
        response = stops.push(parsed.response) + stops.finish()  # nothing behind a stop string
        return ParsedResponse(think, response, parsed.tool_calls, parsed.extra, parsed.complete)

    def _read(self, steps: Iterator[list[int]]) -> Generator[str, None, None]:
        first = True
        while not self._ended:
            with announced("compiling and reading the prompt") if first else nullcontext():
                ids = next(steps, None)
            first = False
            text = "" if ids is None else self._take(ids)
            if ids is None or self.stats.finish:
                text += self._end(steps)
            if text:
                yield text

    def _take(self, ids: list[int]) -> str:
        """Adds ids up to the one that completes a stop string; the text that they complete."""
        text = ""
        for count, token in enumerate(ids, 1):
            self.ids.append(token)
            if token not in self._hidden:
                text += self._stops.push(self._show.push([token]))
            if self._stops.found is not None:
                self.stats.tokens -= len(ids) - count
                self.stats.finish = "stop"
                break
        return text

    def _end(self, steps: Iterator[list[int]]) -> str:
        """Lets the decoder finish, unless a stop string did; the text that was held back."""
        rest = ""
        if self._stops.found is None:
            for _ in steps:  # no tokens are left, but the state behind them may be kept
                pass
            rest = self._stops.push(self._show.finish()) + self._stops.finish()
        self._ended = True
        self._at_end(self)
        return rest
