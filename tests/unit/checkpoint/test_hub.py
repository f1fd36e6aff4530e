"""Paths and repository ids; the hub itself is never asked, its library and cache are used."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest

from kimi.assets import TINY_K3
from kimi.checkpoint import Checkpoint
from kimi.checkpoint.fingerprint import fingerprint
from kimi.checkpoint.hub import resolve
from kimi.errors import CheckpointError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Replaces the download; returns what was asked for."""
    calls = []
    cache = tmp_path / "cache" / COMMIT
    cache.mkdir(parents=True)

    def snapshot_download(repo_id, **options):
        calls.append((repo_id, options["revision"], options["allow_patterns"]))
        if repo_id == "org/broken":
            raise OSError("no\n  network")
        for pattern in options["allow_patterns"]:
            if pattern.startswith("model") and repo_id != "org/partial":
                (cache / pattern).write_text("")
        return str(cache)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The hub's own cache, offline, with the small K3 as org/small at branch main."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "hub" / "models--org--small"
    snapshot = folder / "snapshots" / COMMIT
    shutil.copytree(TINY_K3, snapshot)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return snapshot


def test_an_existing_folder_wins(tmp_path, monkeypatch, asked):
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name") == Path("org/name")
    assert asked == []


def test_a_repository_without_index(tmp_path, asked):
    assert resolve("moonshotai/Kimi-K3") == tmp_path / "cache" / COMMIT
    assert asked[0] == ("moonshotai/Kimi-K3", None, ["*.json", "*.model"])
    assert asked[1][:2] == ("moonshotai/Kimi-K3", COMMIT)
    assert "model.safetensors" in asked[1][2]


def test_only_files_that_are_used_are_fetched(tmp_path, asked):
    files = {
        "language_model.model.norm.weight": "model-1.safetensors",
        "vision_tower.a": "model-2.safetensors",
        "language_model.lm_head.weight": "model-3.safetensors",
        "mm_projector.b": "model-3.safetensors",
    }
    index = tmp_path / "cache" / COMMIT / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    resolve("org/name")
    found = [p for p in asked[1][2] if p.startswith("model")]
    assert found == ["model-1.safetensors", "model-3.safetensors"]


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/3", COMMIT])
def test_a_revision(asked, revision):
    resolve(f"org/name@{revision}")
    assert [call[1] for call in asked] == [revision, COMMIT]


def test_another_commit_than_the_one_asked_for(asked):
    other = COMMIT[::-1]
    with pytest.raises(CheckpointError, match=f"expected revision {other}, found {COMMIT}"):
        resolve(f"org/name@{other}")


def test_files_that_did_not_come(asked):
    with pytest.raises(CheckpointError, match="org/partial: model.safetensors: expected in the"):
        resolve("org/partial")


@pytest.mark.parametrize("name", ["org/small", "org/small@main", f"org/small@{COMMIT}"])
def test_from_the_cache_offline(cache, name):
    checkpoint = Checkpoint.open(name)
    assert checkpoint.path == cache and not checkpoint.problems()


def test_what_the_cache_lacks_offline(cache):
    with pytest.raises(CheckpointError, match="org/other: no such folder, and .* cannot be had"):
        resolve("org/other")
    with pytest.raises(CheckpointError, match="org/small@v2: no such folder, and .* cannot be had"):
        resolve("org/small@v2")
    (cache / "model-00004-of-000007.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00004-of-000007.safetensors"):
        resolve("org/small")


def test_a_file_of_the_vision_part_need_not_be_there(cache):
    before = fingerprint(Checkpoint(cache))
    index = cache / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    data["weight_map"]["vision_tower.a"] = "model-vision.safetensors"
    index.write_text(json.dumps(data))
    checkpoint = Checkpoint.open("org/small")
    assert checkpoint.problems() == [] and fingerprint(checkpoint) == before
    assert all(row.shard != "model-vision.safetensors" for row in checkpoint.summary().rows)


def test_a_failing_download_is_one_line(asked):
    with pytest.raises(CheckpointError, match="org/broken: no such folder, .* had: no network$"):
        resolve("org/broken")


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "org/name@",
        "org/name@a b",
        "/no/such/folder",
        "./org/name",
        "~/x",
        "a/b/c",
        "org/",
        "../up",
        "o r/n",
    ],
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
