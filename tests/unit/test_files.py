"""Result files are written completely or not at all, with a one-line error."""

import json
import os
import resource
import threading

import pytest

from kimi.errors import InputError
from kimi.files import check_writable, write_json, write_text, writing


@pytest.mark.parametrize(
    "name,message",
    [
        ("missing/x.json", "there is no folder"),
        (".", "it is a folder, expected a file name"),
        ("folder/", "it is a folder, expected a file name"),
        ("file/x.json", "there is no folder"),
        ("n" * 300, "File name too long"),
    ],
)
def test_a_wrong_destination_is_refused_before_the_work(tmp_path, name, message):
    (tmp_path / "file").touch()
    path = f"{tmp_path}/{name}"
    for refuse in (check_writable, lambda p: write_text(p, "x")):
        with pytest.raises(InputError, match=message) as refused:
            refuse(path)
        assert "\n" not in str(refused.value) and f"{tmp_path}" in str(refused.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_system_that_refuses_files_is_found_out_even_by_a_superuser():
    with pytest.raises(InputError, match="/proc/kimi.json: cannot be written: "):
        check_writable("/proc/kimi.json")


def test_the_check_leaves_nothing_and_changes_nothing(tmp_path):
    old = tmp_path / "old.json"
    old.write_text("old")
    check_writable(old)
    check_writable(tmp_path / "new.json")
    assert [p.name for p in tmp_path.iterdir()] == ["old.json"] and old.read_text() == "old"


def test_a_full_disk_leaves_what_was_there(tmp_path):
    old = tmp_path / "old.json"
    old.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(InputError, match="old.json: cannot be written: File too large"):
            write_text(old, "x" * 10_000)
        with pytest.raises(InputError, match="new.json: cannot be written: File too large"):
            write_text(tmp_path / "new.json", "x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in tmp_path.iterdir()] == ["old.json"] and old.read_text() == "old"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_writer_leaves_what_was_there(tmp_path, error):
    old = tmp_path / "old.json"
    old.write_text("old")
    with pytest.raises(error), writing(old) as file:
        file.write(b"half")
        raise error
    assert [p.name for p in tmp_path.iterdir()] == ["old.json"] and old.read_text() == "old"


def test_mode_and_link_of_an_old_file_are_kept(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


def test_devices_and_pipes_are_written_to_and_stay(tmp_path):
    write_text("/dev/null", "x")
    assert not os.path.isfile("/dev/null")
    with pytest.raises(InputError, match="/dev/full: cannot be written: No space left on device"):
        write_text("/dev/full", "x")
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_text(tmp_path / "pipe", "through")
    reader.join()
    assert read == ["through"] and (tmp_path / "pipe").is_fifo()


def test_json_of_a_name_that_is_not_utf8(tmp_path):
    value = {"path": os.fsdecode(b"caf\xe9"), "text": "naïve"}
    write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text()) == value
    assert "naïve" in (tmp_path / "x.json").read_text()


def test_what_json_has_no_word_for_is_null(tmp_path):
    value = {"a": float("nan"), "b": [1.5, float("inf"), (float("-inf"), "x")], "c": {"d": 2}}
    write_json(tmp_path / "x.json", value)
    found = (tmp_path / "x.json").read_text()
    assert json.loads(found, parse_constant=pytest.fail) == {
        "a": None, "b": [1.5, None, [None, "x"]], "c": {"d": 2},
    }  # fmt: skip
