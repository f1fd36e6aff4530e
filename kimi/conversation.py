"""Answers while they are being written, and conversations of several turns."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from kimi.decoding.engine import Decoder, Stats
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import Schedule
from kimi.runtime.decoder import KernelDecoder
from kimi.runtime.snapshots import Conversation
from kimi.text import StreamDecoder, Tokenizer, encode_chat, parse_response
from kimi.text.chat import Message, Thinking
from kimi.text.display import ChatDisplay


@dataclass
class Generation:
    """One answer while it is being written: an iterator over its text.

    Attributes:
      ids: int token ids so far, the stop id included.
      stats: of the decoding so far.
    """

    _steps: Iterator[list[int]]
    _show: StreamDecoder | ChatDisplay
    _hidden: frozenset[int]
    ids: list[int]
    stats: Stats
    _at_end: Callable[[list[int]], None] = lambda ids: None

    def __iter__(self) -> Iterator[str]:
        """Text as soon as its characters are complete; together it is the whole answer."""
        for ids in self._steps:
            self.ids += ids
            if text := self._show.push([i for i in ids if i not in self._hidden]):
                yield text
        if text := self._show.finish():
            yield text
        self._at_end(self.ids)

    def text(self) -> str:
        """Runs to the end; the text that has not been iterated over yet."""
        return "".join(self)


@dataclass
class Chat:
    """A conversation, of which every turn continues where the one before ended.

    With the kernel and a drafter the states at the ends of turns are kept on the devices (see
    `runtime.snapshots`, which says what they hold and how much), so that a turn reads only what is
    new. Otherwise each turn is read from its beginning. The answers are the same.

    Attributes:
      decoder: with room for the whole conversation.
      tokenizer: of the model.
      schedule: of all turns; None is plain decoding.
      thinking: effort of all turns.
      messages: so far, in OpenAI style; a turn joins them when its answer has been read to its end.
    """

    decoder: Decoder | KernelDecoder
    tokenizer: Tokenizer
    schedule: Schedule | None
    thinking: Thinking
    messages: list[Message] = field(default_factory=list)
    _kept: Conversation | None = None

    def __post_init__(self) -> None:
        if isinstance(self.decoder, KernelDecoder) and self.schedule is not None:
            self._kept = Conversation(self.decoder.blocks)

    def say(
        self, text: str, max_tokens: int = 256, *, temperature: float = 0.0, top_p: float = 1.0,
        seed: int = 0,
    ) -> Generation:  # fmt: skip
        """The answer to a message; `Generation.stats.cached_tokens` of the prompt were not read.

        An answer that is not read to its end, or is interrupted, leaves the conversation as it was.

        Raises:
          InputError: a value out of range, or no room for prompt and answer.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        prompt = encode_chat(asked, self.tokenizer, thinking=self.thinking)
        stats, sampling = Stats(), Sampling(temperature, top_p, seed)
        generate: Callable[..., Iterator[list[int]]] = self.decoder.generate
        if self._kept is not None:
            generate = partial(generate, conversation=self._kept)
        steps = generate(
            prompt, max_tokens, sampling=sampling, schedule=self.schedule,
            stop_ids=self.tokenizer.stop_ids, stats=stats,
        )  # fmt: skip

        def keep(ids: list[int]) -> None:
            self.messages = [*asked, self._answer(ids)]

        return Generation(steps, ChatDisplay(self.tokenizer), frozenset(), [], stats, keep)

    def _answer(self, ids: list[int]) -> Message:
        start: Literal["think", "response"] = "response" if self.thinking == "off" else "think"
        parsed = parse_response(ids, self.tokenizer, start=start)
        message: dict[str, object] = {"role": "assistant", "content": parsed.response}
        if parsed.think:
            message["reasoning_content"] = parsed.think
        return message
