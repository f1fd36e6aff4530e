"""Finding the folder of a checkpoint: a local path, or a repository of the Hugging Face hub.

A repository is `organisation/name`, or `organisation/name@revision` with a branch, a tag or a
commit. Of its files only those are fetched that are used: json files, tokenizer, and the weights
that hold a tensor of the text model or of a drafter. The hub's settings apply: HF_HUB_OFFLINE=1
uses only its cache, and HF_HUB_DISABLE_PROGRESS_BARS=1 hides its progress bars.
"""

import os
import re
from pathlib import Path

from kimi import values
from kimi.checkpoint import names
from kimi.checkpoint.shards import INDEX, SINGLE
from kimi.errors import CheckpointError, ConfigError
from kimi.fields import load_json

_REPOSITORY = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL_FILES = ["*.json", "*.model"]
_DRAFTERS = "*/*.safetensors"  # a drafter may lie in a folder of its target's repository


def resolve(path_or_repo: str | os.PathLike[str]) -> Path:
    """Returns the local folder; downloads a repository into the hub's cache.

    Only a string that is no existing path is taken for a repository.

    Raises:
      CheckpointError: no such folder, the repository or the revision cannot be had, or the cache
        has not all of it and may not ask.
    """
    name = values.path("model", path_or_repo)
    path = Path(name)
    if os.path.isdir(path):
        return path
    if os.path.exists(path):
        raise CheckpointError(f"{path}: expected a folder with config.json, found a file")
    repository = _REPOSITORY.fullmatch(name) if isinstance(path_or_repo, str) else None
    if repository is None:
        raise CheckpointError(
            f"{path}: expected a folder or a hub repository organisation/name, found neither"
        )
    return _download(repository[1], repository[2])


def _download(repository: str, revision: str | None) -> Path:
    small = _snapshot(repository, revision, _SMALL_FILES)
    # Should the branch move meanwhile, weights and index still are of one commit.
    commit = small.name if _COMMIT.fullmatch(small.name) else revision
    if revision is not None and _COMMIT.fullmatch(revision) and commit != revision:
        raise CheckpointError(f"{repository}: expected revision {revision}, found {commit}")
    weights = _weight_files(small)
    folder = _snapshot(repository, commit, [*_SMALL_FILES, *weights, _DRAFTERS])
    for file in weights:
        if not (folder / file).exists():
            raise CheckpointError(
                f"{repository}: {file}: expected in the repository or the hub's cache, found no "
                "such file"
            )
    return folder


def _weight_files(folder: Path) -> list[str]:
    """The files of the index that hold a tensor that is used."""
    if not (folder / INDEX).exists():
        return [SINGLE]
    try:
        files = load_json(folder / INDEX).get("weight_map")
    except ConfigError as e:
        raise CheckpointError(str(e)) from None
    if not isinstance(files, dict):
        raise CheckpointError(f"{folder / INDEX}: weight_map: expected an object, found {files!r}")
    return sorted({str(f) for n, f in files.items() if not names.is_skipped(n)})


def _snapshot(repository: str, revision: str | None, patterns: list[str]) -> Path:
    # Slow to import, and local folders do without it.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except Exception as e:  # the hub raises its own, requests', httpx's and the system's errors
        reason = " ".join(str(e).split()) or type(e).__name__
        where = repository if revision is None else f"{repository}@{revision}"
        raise CheckpointError(
            f"{where}: no such folder, and the hub repository cannot be had: {reason}"
        ) from e
