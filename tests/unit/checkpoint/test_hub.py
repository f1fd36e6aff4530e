"""Paths and repository ids; the hub itself is never asked."""

from pathlib import Path

import huggingface_hub
import pytest

from kimi.checkpoint.hub import resolve
from kimi.errors import CheckpointError


@pytest.fixture(autouse=True)
def asked(monkeypatch, tmp_path):
    """Replaces the download; returns what was asked for."""
    calls = []

    def snapshot_download(repo_id, **options):
        calls.append(repo_id)
        if repo_id == "org/broken":
            raise OSError("no\n  network")
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_an_existing_folder_wins(tmp_path, monkeypatch, asked):
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name") == Path("org/name")
    assert asked == []


def test_a_repository_is_downloaded(tmp_path, asked):
    assert resolve("moonshotai/Kimi-K3") == tmp_path / "cache"
    assert asked == ["moonshotai/Kimi-K3"]


def test_a_failing_download_is_one_line():
    with pytest.raises(CheckpointError, match="org/broken: no such folder, .* had: no network$"):
        resolve("org/broken")


@pytest.mark.parametrize(
    "name",
    ["nothing", "/no/such/folder", "./org/name", "~/x", "a/b/c", "org/", "../up", "o r/n"],
)
def test_other_strings_are_no_repositories(name, asked):
    with pytest.raises(CheckpointError, match="expected a folder or a hub repository"):
        resolve(name)
    assert asked == []


def test_a_path_object_is_never_a_repository(asked):
    with pytest.raises(CheckpointError, match="found neither"):
        resolve(Path("org/name"))
    assert asked == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="expected a folder with config.json, found a file"):
        resolve(tmp_path / "file")
