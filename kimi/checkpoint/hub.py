"""Finding the folder of a checkpoint: a local path, or a repository of the Hugging Face hub."""

import os
import re
from pathlib import Path

from kimi.errors import CheckpointError

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILES = ["*.json", "*.safetensors", "*.model"]


def resolve(path_or_repo: str | os.PathLike[str]) -> Path:
    """Returns the local folder; downloads a repository `organisation/name` into the hub's cache.

    Only a string that is no existing path is taken for a repository. The hub's own environment
    variables apply: with HF_HUB_OFFLINE=1 only what the cache holds is used.

    Raises:
      CheckpointError: no such folder, or the repository cannot be had.
    """
    path = Path(path_or_repo)
    if path.is_dir():
        return path
    if path.exists():
        raise CheckpointError(f"{path}: expected a folder with config.json, found a file")
    name = str(path_or_repo)
    if not isinstance(path_or_repo, str) or not _REPOSITORY.fullmatch(name):
        raise CheckpointError(
            f"{path}: expected a folder or a hub repository organisation/name, found neither"
        )
    return _download(name)


def _download(repository: str) -> Path:
    # Slow to import, and local folders do without it.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=_FILES))
    except Exception as e:  # the hub raises its own, requests', httpx's and the system's errors
        reason = " ".join(str(e).split()) or type(e).__name__
        raise CheckpointError(
            f"{repository}: no such folder, and the hub repository cannot be had: {reason}"
        ) from e
