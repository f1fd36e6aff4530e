"""Result files, which are checked before the work and written atomically; JSON; text lines."""

import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from kimi.errors import InputError, KimiError


def check_writable(path: str | Path) -> Path:
    """Checks before the work that its result can be saved; leaves no file behind.

    Raises InputError if it is a folder, or no file can be created there.
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
        else:  # permission bits do not decide: read-only file systems, superusers
            with suppress(FileNotFoundError):
                path.lstat()  # fails if the name is too long
            part = _part_of(path)
            part.open("xb").close()
            part.unlink()
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror}") from None
    return path


@contextmanager
def writing(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path` when the block ends without an error.

    Until then, and after an error, `path` is unchanged. The file is synced to disk before it
    replaces `path`. Devices and pipes, such as `/dev/stdout`, are written to directly.

    Raises InputError as `check_writable` does, or if the disk is full.
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
    """Writes a UTF-8 file as `writing` does."""
    with writing(path) as file:
        # A lone surrogate, as in file names that are not UTF-8, becomes an escape that JSON reads.
        file.write(text.encode(errors="backslashreplace"))


def write_json(path: str | Path, value: Any) -> None:
    """Writes a JSON file as `writing` does."""
    write_text(path, json_text(value, indent=1) + "\n")


def json_text(value: Any, **style: Any) -> str:
    """Strict JSON; NaN and infinity become null. `style`: options of `json.dumps`."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, **style)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def read_bytes(path: str | Path, error: type[KimiError] = InputError) -> bytes:
    """The contents of a file. Raises `error` if it is missing or cannot be read."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except OSError as e:
        raise error(f"{path}: cannot be read: {e.strerror}") from None


def read_lines(path: str | Path) -> list[tuple[int, str]]:
    """The lines of a text file that are not blank, with their numbers from 1.

    Lines end at LF or CR LF only: other Unicode separators are text. A byte-order mark at the
    beginning is dropped. Raises InputError if the file cannot be read, or is not UTF-8.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = e.object.count(b"\n", 0, e.start) + 1
        raise InputError(
            f"{path}: line {line}: expected UTF-8, found {e.object[e.start]:#x}"
        ) from None
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _is_stream(path: Path) -> bool:
    """Whether it is a device or a pipe, which no file can replace."""
    in_dev = os.path.abspath(path).startswith(("/dev/", "/proc/"))
    return path.exists() and (in_dev or not path.is_file())


def _part_of(path: Path) -> Path:
    return path.resolve().with_name(f".kimi-{secrets.token_hex(4)}.part")
