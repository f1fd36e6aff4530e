"""`chat`: a conversation at the terminal, a line a turn."""

import argparse
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from kimi.cli.answers import add_answer_options, answer_options, brief, compiling_told
from kimi.cli.console import working
from kimi.cli.generate import add_model_options, open_engine
from kimi.cli.lines import piped_lines, typed_lines
from kimi.cli.program import BAD_INPUT
from kimi.conversation import Chat
from kimi.errors import InputError, RoomError
from kimi.process import stoppable
from kimi.values import integer

HINT = "/help lists the commands; Ctrl-D ends the chat"
HELP = """\
/reset  forgets the conversation so far
/exit   ends the chat, and so does Ctrl-D
/help   shows this
Ctrl-C stops an answer; at an empty prompt it ends the chat.
A line that begins with a blank is a message, whatever follows."""
STOPPED = "[stopped: your message and this answer are not kept in the conversation]"


def add_options(p: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model_options(p)
    p.add_argument(
        "--context", type=int, default=2048,
        help="tokens of the whole conversation (default: %(default)s)",
    )  # fmt: skip
    add_answer_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs the command: until the input ends. A line that cannot be answered is told, and left.

    Returns: the exit code, that of bad input if a line could not even be read.
    """
    options = answer_options(args)
    context = integer("context", args.context, 1)
    with working("loading the model"):
        engine = open_engine(args, draft=True)
    chat = engine.chat(context, system=args.system, thinking=args.thinking or "off")
    asks = sys.stdin is not None and sys.stdin.isatty()
    if asks:
        _tell(HINT)
    unread: list[str] = []

    def tell(text: str) -> None:
        unread.append(text)
        _tell(text)

    converse(chat, typed_lines(_tell) if asks else piped_lines(tell), options, asks)
    return BAD_INPUT if unread else 0


def converse(chat: Chat, lines: Iterable[str], options: dict[str, Any], stops: bool) -> None:
    """Answers lines on stdout, and obeys those that are commands.

    Args:
      options: of `Chat.say`.
      stops: whether Ctrl-C stops an answer, instead of all.
    """
    for line in lines:
        command = line.rstrip()
        if not command:
            continue
        if not command.startswith("/"):
            _answer(chat, line.strip(), options, stops)
        elif command == "/exit":
            return
        elif command == "/reset":
            chat.reset()
            _tell("[a new conversation]")
        elif command == "/help":
            _tell(HELP)
        else:
            _tell(f"error: {command[:60]}: expected /help, /reset or /exit")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _answer(chat: Chat, text: str, options: dict[str, Any], stops: bool) -> None:
    try:
        answer = chat.say(text, **options)
    except RoomError as error:
        asked = any(m["role"] == "assistant" for m in chat.messages)
        remedy = "/reset begins a new conversation" if asked else "--context N gives more room"
        _tell(f"error: {error}; {remedy}")
        return
    except InputError as error:
        _tell(f"error: {error}")
        return
    with stoppable() if stops else nullcontext(lambda: False) as stopped, compiling_told():
        for piece in answer:
            print(piece, end="", flush=True)
            if stopped():
                break
    print(flush=True)
    _tell(brief(answer.stats) if answer.finish_reason else STOPPED)
