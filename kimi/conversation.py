"""Prompts in the chat format, and conversations of several turns."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from kimi.answer import Answer, Channel
from kimi.decoding.checks import check_ids
from kimi.errors import InputError
from kimi.text import Tokenizer, encode_chat
from kimi.text.chat import Message, Thinking
from kimi.values import choice, flag, shown
from kimi.values import text as checked_text

Prompt = str | Sequence[int] | Sequence[Message]
THINKING: tuple[Thinking, ...] = get_args(Thinking)


@dataclass(frozen=True)
class ChatFormat:
    """How a prompt becomes ids.

    Attributes:
      chat: in the chat format; False continues plain text.
      system: message that a conversation begins with.
      tools: declarations of functions, in the shape of chat completions.
      thinking: effort, "off", "low", "high" or "max".

    Raises:
      InputError: a value out of range.
    """

    chat: bool = True
    system: str | None = None
    tools: Sequence[Message] | None = None
    thinking: Thinking = "off"

    def __post_init__(self) -> None:
        flag("chat", self.chat)
        choice("thinking", self.thinking, THINKING)
        if self.system is not None:
            checked_text("system", self.system)

    def encode(
        self, prompt: Prompt, tokenizer: Tokenizer, vocab_size: int
    ) -> tuple[list[int], Channel | None]:
        """The ids of a prompt, and the channel that they open; None for plain text and ids.

        Args:
          prompt: a user's message, messages, plain text without `chat`, or ids as they are.

        Raises:
          InputError: no such prompt, an id outside the vocabulary, or an option of the chat format
            without it.
        """
        messages = _messages(prompt)
        if messages is None and isinstance(prompt, str) and self.chat:
            messages = [{"role": "user", "content": require_text(prompt)}]
        if messages is not None:
            if not self.chat:
                raise InputError(
                    "prompt: expected a text or token ids with chat=False, found messages"
                )
            return self.encode_messages(messages, tokenizer)
        if isinstance(prompt, str):
            ids, kind = tokenizer.encode(prompt), "plain text"
        else:
            ids, kind = _ids(prompt, vocab_size), "token ids"
        self._require_no_chat(kind)
        return ids, None

    def encode_messages(
        self, messages: Sequence[Message], tokenizer: Tokenizer
    ) -> tuple[list[int], Channel]:
        """The ids of messages behind `system`, and the channel that they open."""
        ids = encode_chat(
            self.with_system(messages), tokenizer, thinking=self.thinking,
            tools=None if self.tools is None else list(self.tools),
        )  # fmt: skip
        return ids, "response" if self.thinking == "off" else "think"

    def with_system(self, messages: Sequence[Message]) -> list[Message]:
        """The messages behind the system message, if there is one."""
        if self.system is None:
            return list(messages)
        return [{"role": "system", "content": self.system}, *messages]

    def _require_no_chat(self, found: str) -> None:
        for name in ("system", "tools"):
            if getattr(self, name) is not None:
                raise InputError(f"{name}: expected a chat, found {found}")
        if self.thinking != "off":
            raise InputError(f"thinking: expected a chat, found {found}")


def _messages(prompt: object) -> Sequence[Message] | None:
    """The prompt, if it is messages."""
    if isinstance(prompt, Mapping):
        raise InputError("prompt: expected a list of messages, found one: put it in a list")
    if isinstance(prompt, list | tuple) and any(isinstance(m, Mapping) for m in prompt):
        return prompt
    return None


def _ids(prompt: Sequence[Any], vocab_size: int) -> list[int]:
    if isinstance(prompt, bytes | bytearray | memoryview) or not isinstance(prompt, Iterable):
        raise InputError(f"prompt: expected a text, messages or token ids, found {shown(prompt)}")
    return check_ids("prompt", prompt, vocab_size)


def require_text(prompt: object) -> str:
    """A user's message. Raises InputError if it is no text or has nothing in it."""
    found = checked_text("prompt", prompt)
    if not found.strip():
        raise InputError("prompt: expected some text, found none")
    return found


class Chat:
    """A conversation, of which every turn continues where the one before ended.

    The states at the ends of turns are kept on the devices (see `decoding.snapshots`, which says
    what they hold and how much), so that a turn reads only what is new.

    Args:
      answer: makes an answer to the ids of a prompt: of (ids, channel, max_tokens, turn, at_end,
        **options), where `turn` wraps the steps.
      tokenizer: of the model.
      format: of all turns; its system message becomes the first one.
      room: tokens of the whole conversation.

    Attributes:
      messages: so far; a turn joins them when its answer has ended.
    """

    def __init__(
        self, answer: Callable[..., Answer], tokenizer: Tokenizer, format: ChatFormat, room: int
    ) -> None:
        self._answer, self._tokenizer, self._room = answer, tokenizer, room
        self._format, self._turn = replace(format, system=None), 0
        self._opening = format.with_system([])
        self.messages = list(self._opening)

    def say(self, said: str | Sequence[Message], max_tokens: int = 256, **options: Any) -> Answer:
        """The answer to a message; `Answer.stats.cached_tokens` of the prompt were not read.

        An answer that is not read to its end, or is interrupted, leaves the conversation as it was;
        the next message ends it.

        Args:
          said: a user's message; or messages, such as the results of tools.
          max_tokens: of the answer.
          options: sampling and `stop`, as of `api.Engine.generate`.

        Raises:
          InputError: a value out of range, or no room for prompt and answer. When an answer is read
            on behind the next message.
        """
        new = _messages(said)
        if new is None:
            new = [{"role": "user", "content": require_text(said)}]
        asked = [*self.messages, *new]
        ids, channel = self._format.encode_messages(asked, self._tokenizer)

        def keep(answer: Answer) -> None:
            self.messages = [*asked, answer.message]

        turn = self._turn + 1
        answer = self._answer(
            ids, channel, max_tokens, at_end=keep, turn=partial(self._steps, turn), **options
        )
        self._turn = turn
        return answer

    def reset(self) -> None:
        """Forgets the conversation so far."""
        self.messages = list(self._opening)

    def __repr__(self) -> str:
        return f"Chat(messages={len(self.messages)}, room={self._room})"

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
