"""Reads through the system's cache and past it."""

import errno
import fcntl
import os

import numpy as np
import pytest

from kimi.codecs.memory import zeroed
from kimi.loading import reading
from kimi.loading.errors import LoadError
from kimi.loading.plan import PAGE_BYTES
from kimi.loading.reading import Files

SIZE = 40 * PAGE_BYTES + 123  # the last page is not whole


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A file, read in short pieces."""
    monkeypatch.setattr(reading, "_LEAST_DIRECT_BYTES", 1)
    monkeypatch.setattr(reading, "READ_BYTES", 8 * PAGE_BYTES)
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return path


@pytest.fixture
def past(monkeypatch):
    """The places of all reads past the cache."""
    found, read = [], reading._read_pages

    def seen(descriptor, target, at):
        found.append(at)
        return read(descriptor, target, at)

    monkeypatch.setattr(reading, "_read_pages", seen)
    return found


def read(path, offset, size, place):
    """`size` bytes from `offset` on, in memory that begins `place` bytes behind a page."""
    memory = zeroed((place + size,), np.uint8)
    with Files() as files:
        files.read(path, offset, memory[place:], lambda at: f"byte {at}", lambda: None)
    assert not memory[:place].any(), "nothing before"
    return memory[place:].tobytes()


@pytest.fixture
def uncached(path, monkeypatch):
    """The file, of which nothing is ever cached."""
    file = reading._File(path)
    direct = file.direct
    file.close()
    if direct is None:
        pytest.skip("this file system has no reads past its cache")
    monkeypatch.setattr(reading._File, "is_cached", lambda self, offset, size: False)
    return path


@pytest.mark.parametrize("offset, size", [
    (0, SIZE), (0, PAGE_BYTES), (7, SIZE - 7), (PAGE_BYTES - 1, 2), (100, 50), (5, PAGE_BYTES),
    (3 * PAGE_BYTES, 20 * PAGE_BYTES + 1), (9 * PAGE_BYTES + 5, 11 * PAGE_BYTES), (SIZE - 1, 1),
])  # fmt: skip
@pytest.mark.parametrize("shift", [0, 64])
def test_every_place_and_size(uncached, past, offset, size, shift):
    """Memory off a page as the file is, and otherwise."""
    place = (offset + shift) % PAGE_BYTES
    assert read(uncached, offset, size, place) == uncached.read_bytes()[offset : offset + size]
    assert past[0] == offset


def test_what_is_cached_is_taken_from_there(path, past):
    expected = path.read_bytes()
    assert read(path, 9, SIZE - 9, 9) == expected[9:]
    assert not past


@pytest.mark.parametrize("error, cached", [(errno.EAGAIN, False), (errno.EOPNOTSUPP, True)])
def test_what_would_have_to_wait_is_not_cached(path, monkeypatch, error, cached):
    """And where nobody can say, it is read as if it were."""
    file, preadv = reading._File(path), os.preadv

    def refuse(descriptor, buffers, at, flags=0):
        if flags:
            raise OSError(error, os.strerror(error))
        return preadv(descriptor, buffers, at)

    monkeypatch.setattr(os, "preadv", refuse)
    if file.direct is not None:
        assert file.is_cached(0, SIZE) == cached
    file.close()


def test_short_reads_are_not_worth_it(uncached, past, monkeypatch):
    monkeypatch.setattr(reading, "_LEAST_DIRECT_BYTES", 2000)
    assert read(uncached, 0, 1999, 0) == uncached.read_bytes()[:1999]
    assert not past


@pytest.mark.parametrize("failing", ["open", "read"])
def test_file_systems_without(uncached, past, monkeypatch, failing):
    """Some refuse to open a file so, others to read from it."""
    original = getattr(os, "open" if failing == "open" else "preadv")

    def refusing(first, second, *rest):
        flags = second if failing == "open" else 0
        if flags & reading._O_DIRECT or (failing == "read" and direct(first)):
            raise OSError(errno.EINVAL, "Invalid argument")
        return original(first, second, *rest)

    monkeypatch.setattr(os, "open" if failing == "open" else "preadv", refusing)
    assert read(uncached, 5, SIZE - 5, 5) == uncached.read_bytes()[5:]
    assert len(past) == (failing == "read")


def direct(descriptor):
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & reading._O_DIRECT)


@pytest.mark.parametrize("place", [0, 64])
def test_the_end_of_the_file(uncached, place):
    with pytest.raises(LoadError, match=rf"byte {SIZE}: expected {SIZE + 1} bytes .* byte {SIZE}$"):
        read(uncached, 0, SIZE + 1, place)


def test_other_errors_are_told(uncached, monkeypatch):
    def fail(*unused):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(reading, "_read_pages", fail)
    with pytest.raises(LoadError, match="byte 3: cannot be read at byte 3: Input/output error"):
        read(uncached, 3, SIZE - 3, 3)
