"""Files: of results, checked before the work begins and afterwards whole or not there; of lines."""

import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from kimi.errors import InputError


def check_writable(path: str | Path) -> Path:
    """Finds out before the work whether its result can be saved. Leaves nothing behind.

    Raises:
      InputError: it is a folder, its folder is missing, or no file can be made there.
    """
    try:
        if Path(path).is_dir() or os.fspath(path).endswith(os.sep):
            raise InputError(f"{path}: cannot be written: it is a folder, expected a file name")
        path = Path(path)
        if not path.parent.is_dir():
            raise InputError(f"{path}: cannot be written: there is no folder {path.parent}")
        if _is_stream(path):
            if not os.access(path, os.W_OK):
                raise InputError(f"{path}: cannot be written: permission denied")
        else:  # permissions alone do not tell: file systems and superusers have rules of their own
            with suppress(FileNotFoundError):
                path.lstat()  # whether the name is too long
            part = _part_of(path)
            part.open("xb").close()
            part.unlink()
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror}") from None
    return path


@contextmanager
def writing(path: str | Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end of the block, and only without an error.

    Until then, and after an error, `path` is what it was. It is on the disk when the block has
    ended. Devices and pipes, such as `/dev/stdout`, are written to directly.

    Raises:
      InputError: see `check_writable`; or the disk is full.
    """
    path = check_writable(path)
    try:
        if _is_stream(path):
            with path.open("wb") as file:
                yield file
            return
        part = _part_of(path)
        try:
            with part.open("xb") as file:
                if path.exists():
                    shutil.copymode(path, part)
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path.resolve())  # a link stays a link
        finally:
            part.unlink(missing_ok=True)
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror or e}") from None


def write_text(path: str | Path, text: str) -> None:
    """Writes a file of UTF-8 as `writing` does."""
    with writing(path) as file:
        # Half a surrogate pair, as in file names that are not UTF-8, becomes what JSON reads back.
        file.write(text.encode(errors="backslashreplace"))


def write_json(path: str | Path, value: Any) -> None:
    """Writes a file of JSON as `writing` does."""
    write_text(path, json_text(value, indent=1) + "\n")


def json_text(value: Any, **style: Any) -> str:
    """Strict JSON, which has no word for NaN and infinity: such numbers are null.

    Args:
      style: options of `json.dumps`.
    """
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, **style)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def read_lines(path: str | Path) -> list[tuple[int, str]]:
    """The lines of a text that are not blank, with their numbers from 1.

    Lines end at a line feed, with or without a carriage return before it, and at nothing else: the
    other separators of Unicode are text. So is everything but a byte-order mark at the beginning.

    Raises:
      InputError: the file cannot be read, or is not UTF-8.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        line = e.object.count(b"\n", 0, e.start) + 1
        raise InputError(
            f"{path}: line {line}: expected UTF-8, found {e.object[e.start]:#x}"
        ) from None
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _is_stream(path: Path) -> bool:
    """Whether it is no file that another can be put in place of."""
    in_place = os.path.abspath(path).startswith(("/dev/", "/proc/"))
    return path.exists() and (in_place or not path.is_file())


def _part_of(path: Path) -> Path:
    """A new name beside a file."""
    return path.resolve().with_name(f".kimi-{secrets.token_hex(4)}.part")
