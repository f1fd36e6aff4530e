"""Answers while they are being written, and conversations of several turns."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from typing import TYPE_CHECKING, Literal

from kimi.decoding.engine import Decoder, Stats
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import Schedule
from kimi.errors import InputError
from kimi.progress import announced
from kimi.text import StopStrings, StreamDecoder, Tokenizer, encode_chat, parse_response
from kimi.text.chat import Message, Thinking
from kimi.text.display import ChatDisplay
from kimi.values import text as checked_text

if TYPE_CHECKING:  # imported when a model is loaded for the kernels: half a second
    from kimi.runtime.decoder import KernelDecoder


class Generation:
    """One answer while it is being written: an iterator over its text.

    A piece comes as soon as its characters are complete and can be no part of a stop string.
    Reading again goes on where reading stopped.

    Args:
      steps: token ids of every step, which fill in `stats`.
      show: makes text of ids.
      stats: of the decoding.
      hidden: ids that are not shown.
      stops: end the text before the first of them, and the ids with the token that completes it.
      at_end: called once, when the answer has ended by itself and before its last piece is given
        out.

    Attributes:
      ids: int token ids so far, the stop id included.
      stats: of the decoding so far.
    """

    def __init__(
        self, steps: Iterator[list[int]], show: StreamDecoder | ChatDisplay, stats: Stats, *,
        hidden: frozenset[int] = frozenset(), stops: str | Sequence[str] = (),
        at_end: Callable[[list[int]], None] = lambda ids: None,
    ) -> None:  # fmt: skip
        self.ids: list[int] = []
        self.stats = stats
        self._show, self._hidden, self._stops = show, hidden, StopStrings(stops)
        self._at_end = at_end
        self._ended = False
        self._pieces = self._read(steps)

    @property
    def finish(self) -> str:
        """Why it ended: "stop" or "length"; empty before that, or if it was interrupted."""
        return self.stats.finish

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self._ended and getgeneratorstate(self._pieces) == GEN_CLOSED:
            raise InputError(
                f"generation: expected one that can go on, found one interrupted behind "
                f"{len(self.ids)} tokens: generate again"
            )
        return next(self._pieces)

    def text(self) -> str:
        """Runs to the end; the text that has not been iterated over yet."""
        return "".join(self)

    def __repr__(self) -> str:
        return (
            f"Generation(prompt_tokens={self.stats.prompt_tokens}, tokens={len(self.ids)}, "
            f"finish={self.finish!r})"
        )

    def _read(self, steps: Iterator[list[int]]) -> Generator[str, None, None]:
        first = True
        while not self._ended:
            with announced("compiling and reading the prompt") if first else nullcontext():
                ids = next(steps, None)
            first = False
            text = "" if ids is None else self._take(ids)
            if ids is None or self.finish:
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
        self._at_end(self.ids)
        self._ended = True
        return rest


class Chat:
    """A conversation, of which every turn continues where the one before ended.

    With the kernel and a drafter the states at the ends of turns are kept on the devices (see
    `runtime.snapshots`, which says what they hold and how much), so that a turn reads only what is
    new. Otherwise each turn is read from its beginning. The answers are the same.

    Args:
      decoder: with room for the whole conversation.
      tokenizer: of the model.
      schedule: of all turns; None is plain decoding.
      thinking: effort of all turns.
      messages: that it begins with, in OpenAI style.

    Attributes:
      messages: so far; a turn joins them when its answer has ended.
    """

    def __init__(
        self, decoder: "Decoder | KernelDecoder", tokenizer: Tokenizer, schedule: Schedule | None,
        thinking: Thinking, messages: Sequence[Message] = (),
    ) -> None:  # fmt: skip
        self.messages = list(messages)
        self._decoder, self._tokenizer = decoder, tokenizer
        self._schedule, self._thinking = schedule, thinking
        self._turn = 0
        kept = None if schedule is None else decoder.conversation()
        generate: Callable[..., Iterator[list[int]]] = decoder.generate
        self._generate = generate if kept is None else partial(generate, conversation=kept)

    def say(
        self, text: str, max_tokens: int = 256, *, temperature: float = 0.0, top_p: float = 1.0,
        top_k: int = 0, seed: int = 0, stop: str | Sequence[str] = (),
    ) -> Generation:  # fmt: skip
        """The answer to a message; `Generation.stats.cached_tokens` of the prompt were not read.

        An answer that is not read to its end, or is interrupted, leaves the conversation as it was;
        the next message ends it. Options as of `api.Engine.generate`.

        Raises:
          InputError: a value out of range, or no room for prompt and answer. When an answer is read
            on behind the next message.
        """
        asked = [*self.messages, {"role": "user", "content": require_text(text)}]
        prompt = encode_chat(asked, self._tokenizer, thinking=self._thinking)
        stats = Stats()
        steps = self._generate(
            prompt, max_tokens, sampling=Sampling(temperature, top_p, seed, top_k),
            schedule=self._schedule, stop_ids=self._tokenizer.stop_ids, stats=stats,
        )  # fmt: skip

        def keep(ids: list[int]) -> None:
            self.messages = [*asked, self._answer(ids, stop)]

        turn = self._turn + 1
        generation = Generation(
            self._steps(turn, steps), ChatDisplay(self._tokenizer), stats, stops=stop, at_end=keep
        )
        self._turn = turn
        return generation

    def __repr__(self) -> str:
        return f"Chat(messages={len(self.messages)}, room={self._decoder.capacity})"

    def _steps(self, turn: int, steps: Iterator[list[int]]) -> Iterator[list[int]]:
        """The steps of a turn, as long as it is the newest: two would share one state."""
        while True:
            if turn != self._turn:
                raise InputError(
                    "answer: expected the newest of the conversation, found one that another "
                    "message followed before it was read to its end"
                )
            ids = next(steps, None)
            if ids is None:
                return
            yield ids

    def _answer(self, ids: list[int], stop: str | Sequence[str]) -> Message:
        think, response = read_answer(ids, self._tokenizer, self._thinking, stop)
        message: dict[str, object] = {"role": "assistant", "content": response}
        if think:
            message["reasoning_content"] = think
        return message


def read_answer(
    ids: Sequence[int], tokenizer: Tokenizer, thinking: Thinking, stop: str | Sequence[str]
) -> tuple[str, str]:
    """What an answer thinks and responds, without the stop string that ended it."""
    start: Literal["think", "response"] = "response" if thinking == "off" else "think"
    parsed = parse_response(list(ids), tokenizer, start=start)
    stops = StopStrings(stop)
    think = stops.push(parsed.think) + stops.finish()
    return think, stops.push(parsed.response) + stops.finish()  # nothing behind a stop string


def require_text(prompt: object) -> str:
    """A user's message. Raises InputError if it is no text or has nothing in it."""
    found = checked_text("prompt", prompt)
    if not found.strip():
        raise InputError("prompt: expected some text, found none")
    return found
