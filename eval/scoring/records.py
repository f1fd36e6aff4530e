"""The file of answers: one JSON object a line, written as they come, so that a run can go on.

The first line of every run says with which settings and which commit; every other line is an
answer. Lines are only ever added. A line that a crash cut off is removed when the next run starts.
"""

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from kimi.errors import InputError

Record = dict[str, Any]
RUN = "run"  # key of a line that starts a run


def read(path: Path) -> tuple[list[Record], list[Record]]:
    """The runs and the answers in a file, without a line that was cut off at its end.

    Raises:
      InputError: it cannot be read, or a line is not what this module writes.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: expected UTF-8, found other bytes") from None
    runs: list[Record] = []
    answers: list[Record] = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].split("\n")[:-1], start=1):
        try:
            found = json.loads(line)
            is_run, known = RUN in found, RUN in found or isinstance(found["job"], int)
        except (json.JSONDecodeError, TypeError, KeyError):
            known = False
        if not known:
            raise InputError(f"{path}: line {number}: expected an answer, found {line[:60]!r}")
        (runs if is_run else answers).append(found)
    return [run[RUN] for run in runs], answers


class AnswerFile:
    """A file of answers that is open for adding; a context manager.

    Args:
      path: of the file, made if it is not there.
      settings: that its answers must have been made with.
      run: what else to write down about this run, before its first answer.

    Attributes:
      answers: that are in it, by job.
      runs: what was written down about every run that gave answers.

    Raises:
      InputError: it cannot be written, another run has it open, or it has other settings.
    """

    def __init__(self, path: Path, settings: dict[str, Any], run: dict[str, Any]):
        self.path, self.answers, self.runs = path, dict[int, Record](), list[Record]()
        self._head: list[Record] = [{RUN: {**run, "settings": settings}}]
        try:
            self._file: TextIO = path.open("a+", encoding="utf-8")
        except OSError as e:
            raise InputError(f"{path}: cannot be written: {e.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InputError(f"{path}: another run is writing it; give another --out") from None
        try:
            self._resume(settings)
        except BaseException:
            self._file.close()
            raise

    def _resume(self, settings: dict[str, Any]) -> None:
        runs, answers = read(self.path)
        whole = self.path.read_bytes()
        os.truncate(self.path, whole.rfind(b"\n") + 1)
        if answers and not runs:
            raise InputError(f"{self.path}: line 1: expected the settings of a run, found none")
        for run in runs:
            _check_same(self.path, settings, run.get("settings"))
        self.answers = {answer["job"]: answer for answer in answers}
        self.runs = [_facts(run) for run in runs]

    def add(self, answers: Iterable[Record]) -> None:
        """Adds answers; on return they are on the disk."""
        new = list(answers)
        self._write([*self._head, *new])
        self.runs += [_facts(line[RUN]) for line in self._head]
        self._head = []
        self.answers |= {answer["job"]: answer for answer in new}

    def _write(self, lines: Iterable[Record]) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        try:
            self._file.write(text)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as e:
            raise InputError(f"{self.path}: cannot be written: {e.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._file.close()


def _facts(run: Record) -> Record:
    return {name: value for name, value in run.items() if name != "settings"}


def _check_same(path: Path, settings: dict[str, Any], found: Any) -> None:
    if not isinstance(found, dict):
        raise InputError(f"{path}: settings: expected an object, found {found!r:.60}")
    for name in sorted(settings.keys() | found.keys()):
        if settings.get(name) != found.get(name):
            raise InputError(
                f"{path}: {name}: its answers were made with {found.get(name)!r}, this run has "
                f"{settings.get(name)!r}: give the same options, or another --out"
            )
