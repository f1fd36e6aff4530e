"""The file of answers: one JSON object a line, written as they come, so that a run can go on.

The first line of every run says with which settings and which commit; every other line is an
answer. Lines are only ever added. What a crash cut off is removed when the next run starts, and so
is the first line of a run that gave no answer.
"""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from kimi.errors import InputError
from kimi.fields import JsonError, parse_json
from kimi.files import json_text

Record = dict[str, Any]
RUN = "run"  # key of a line that starts a run


def read(path: Path) -> tuple[list[Record], list[Record]]:
    """The runs that gave answers and the answers in a file, without what was cut off at its end.

    Raises:
      InputError: it cannot be read, or a line is not what this module writes.
    """
    try:
        runs, answers, _, _ = _parse(path, path.read_bytes())
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror}") from None
    return runs, answers


def _parse(path: Path, data: bytes) -> tuple[list[Record], list[Record], list[Record], int]:
    """Runs, answers, runs that gave none, and how many bytes hold the first two."""
    runs: list[Record] = []
    answers: list[Record] = []
    begun: list[Record] = []
    kept = end = 0
    for number, line in enumerate(data.split(b"\n"), start=1):
        end += len(line) + 1
        found = _record(line)
        if found is None:
            if end > len(data):  # behind the last line's end: cut off
                break
            text = line.decode(errors="replace")
            raise InputError(f"{path}: line {number}: expected an answer, found {text[:60]!r}")
        if RUN in found:
            begun.append(found[RUN])
        else:
            runs, begun, kept = runs + begun[-1:], [], end
            answers.append(found)
    return runs, answers, begun, kept


def _record(line: bytes) -> Record | None:
    """What a line holds; None if it is no run and no answer."""
    try:
        found = parse_json(line.decode())
    except (UnicodeDecodeError, JsonError):
        return None
    if not isinstance(found, dict):
        return None
    job = found.get("job")
    known = isinstance(found[RUN], dict) if RUN in found else type(job) is int and job >= 0
    return found if known else None


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
            self._file: BinaryIO = path.open("ab", buffering=0)
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
        data = self.path.read_bytes()
        runs, answers, begun, kept = _parse(self.path, data)
        if answers and not runs:
            raise InputError(f"{self.path}: line 1: expected the settings of a run, found none")
        for run in runs + begun:
            _check_same(self.path, settings, run.get("settings"))
        if kept > len(data):  # only the end of the last line has been cut off
            self._write(b"\n")
        else:
            os.truncate(self.path, kept)
        self.answers = {answer["job"]: answer for answer in answers}
        self.runs = [_facts(run) for run in runs]

    def add(self, answers: Iterable[Record]) -> None:
        """Adds answers; on return they are on the disk."""
        new = list(answers)
        lines = (json_text(line) + "\n" for line in (*self._head, *new))
        # Half a surrogate pair, as a prompt may hold, becomes what JSON reads back.
        self._write("".join(lines).encode(errors="backslashreplace"))
        self.runs += [_facts(line[RUN]) for line in self._head]
        self._head = []
        self.answers |= {answer["job"]: answer for answer in new}

    def _write(self, data: bytes) -> None:
        size = os.fstat(self._file.fileno()).st_size
        try:
            while data:
                data = data[self._file.write(data) :]
            os.fsync(self._file.fileno())
        except OSError as e:
            os.truncate(self.path, size)  # no part of an answer stays
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
