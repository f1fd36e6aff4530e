"""Input lines, from a terminal or from a pipe."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType

from kimi.cli.console import read_line, utf8_error
from kimi.errors import InputError
from kimi.process import handled
from kimi.startup import cache_folder

PROMPT = "> "
_HISTORY_LINES = 1000


def piped_lines(report: Callable[[str], None]) -> Iterator[str]:
    """Lines of standard input; one that is not UTF-8 is reported and skipped."""
    number, line = 0, "\n"
    while line:
        number += 1
        try:
            line = read_line()
        except InputError as error:
            if sys.stdin is None:
                raise
            report(f"error: line {number}: {error}")
        else:
            yield line


def typed_lines(report: Callable[[str], None]) -> Iterator[str]:
    """Lines of a terminal until Ctrl-D, with editing and history if the system has readline.

    Ctrl-C clears a line that is being typed; at an empty line, it raises KeyboardInterrupt.
    """
    shown = sys.stdout.isatty()  # otherwise standard output has the answers only
    editor = _open_editor() if shown else None
    while True:
        if not shown:
            print(PROMPT, end="", file=sys.stderr, flush=True)
        try:
            line = input(PROMPT if shown else "")
        except EOFError:
            print(file=sys.stdout if shown else sys.stderr)
            return
        except UnicodeDecodeError as error:
            report(f"error: {utf8_error(error)}")
        except KeyboardInterrupt:
            print(file=sys.stdout if shown else sys.stderr)
            if editor is None or not editor.typed():
                raise
            handled()
        else:
            if editor is not None:
                editor.save()
            yield line


def _open_editor() -> "_Editor | None":
    try:
        import readline
    except ImportError:
        return None
    return _Editor(readline)


class _Editor:
    """The system's line editor, with the history of earlier sessions."""

    def __init__(self, readline: ModuleType) -> None:
        folder = cache_folder()
        self._readline = readline
        self._file = None if folder is None else folder / "chat_history"
        readline.set_history_length(_HISTORY_LINES)
        if self._file is not None:
            with suppress(OSError):
                readline.read_history_file(self._file)
        self._saved = readline.get_current_history_length()

    def typed(self) -> str:
        """The line that is being typed."""
        return str(self._readline.get_line_buffer())

    def save(self) -> None:
        """Appends new lines to the file, so that concurrent sessions keep each other's."""
        length = self._readline.get_current_history_length()
        if self._file is None or length == self._saved:
            return
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.touch(mode=0o600)
            if hasattr(self._readline, "append_history_file"):
                self._readline.append_history_file(length - self._saved, self._file)
            else:
                self._readline.write_history_file(self._file)
        self._saved = length
