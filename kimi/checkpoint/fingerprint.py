"""Which checkpoint a folder holds, recognised by a small part of it.

A checkpoint of this size takes hours to hash. Its fingerprint is the SHA-256 of config.json; of
the names, sizes and headers of all files that are used (so of tensor names, dtypes, shapes and
places); and of samples of the values, `SAMPLES` of `SAMPLE_BYTES` per file, evenly spaced. Another
revision of a model has other values nearly everywhere and is noticed; a single changed byte may
not be.
"""

import hashlib
import json
from pathlib import Path

from kimi.checkpoint.reader import Checkpoint
from kimi.errors import CheckpointError
from kimi.fields import load_json

SAMPLES, SAMPLE_BYTES = 64, 4096


def fingerprint(checkpoint: Checkpoint) -> str:
    """Hexadecimal. Raises CheckpointError if a file cannot be read."""
    digest = hashlib.sha256()
    config = load_json(checkpoint.path / "config.json")
    digest.update(json.dumps(config, sort_keys=True).encode())
    for name in sorted({checkpoint.shards.files[tensor] for tensor in checkpoint}):
        tensors = checkpoint.shards.file(name).tensors
        header = [[n, i.dtype, i.shape, i.start, i.end] for n, i in tensors.items()]
        digest.update(json.dumps([name, header]).encode())
        digest.update(_samples(checkpoint.path / name))
    return digest.hexdigest()


def _samples(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            step = max(SAMPLE_BYTES, size // SAMPLES)
            samples = [str(size).encode()]
            for start in (*range(0, size, step), max(0, size - SAMPLE_BYTES)):
                file.seek(start)
                samples.append(file.read(SAMPLE_BYTES))
    except OSError as e:
        raise CheckpointError(f"{path}: cannot be read: {e.strerror}") from None
    return b"".join(samples)
