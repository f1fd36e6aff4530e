"""A checkpoint of random weights in the published layout, for measuring where the real one is not.

All widths are those of the model asked for; layers, experts and vocabulary may be fewer. Codes are
any, scale bytes lie as close together as those of trained weights, floats are finite and small.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from kimi.checkpoint import names
from kimi.checkpoint.files import DTYPES
from kimi.checkpoint.names import TensorSpec
from kimi.checkpoint.shards import INDEX
from kimi.config import ModelConfig
from kimi.config.model import TARGET_PREFIX
from kimi.loading.errors import LoadError, StoreError
from kimi.loading.folder import check_place

SHARD_BYTES = 1 << 30
_CHUNK = 16 << 20
_LEAST_SCALE, _SCALES = 115, 6
_F32 = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")


def reduced(data: Mapping[str, Any], layers: int, experts: int, vocab: int) -> dict[str, Any]:
    """A config.json with fewer KDA layers, all with experts, and otherwise the same sizes.

    Args:
      data: config.json of the model.
    """
    found: dict[str, Any] = json.loads(json.dumps(data))
    text = found.get("text_config", found)
    text |= {
        "num_hidden_layers": layers,
        "num_experts": experts,
        "num_experts_per_token": min(experts, text["num_experts_per_token"]),
        "vocab_size": vocab,
        "first_k_dense_replace": 0,
    }
    text["linear_attn_config"] |= {
        "kda_layers": list(range(1, layers + 1)),
        "full_attn_layers": [],
    }
    for part in (found, text):
        for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
            part.pop(token, None)
    return found


def total_bytes(config: ModelConfig) -> int:
    """Bytes of all tensors of a generated checkpoint."""
    return sum(_nbytes(name, spec) for name, spec in _specs(config).items())


def generate(
    folder: str | os.PathLike[str], data: Mapping[str, Any], seed: int = 0
) -> Iterator[int]:
    """Writes a checkpoint; gives the bytes written so far, every now and then.

    Args:
      folder: is made, its parent is not; must not hold a checkpoint.
      data: config.json.
    Raises:
      LoadError: it cannot be written.
    """
    try:
        folder = check_place(folder)
    except StoreError as e:
        raise LoadError(str(e)) from None
    config = ModelConfig.from_dict(dict(data))
    rng, written = np.random.default_rng(seed), 0
    files: dict[str, str] = {}
    try:
        folder.mkdir(exist_ok=True)
        for number, shard in enumerate(_shards(config)):
            path = folder / f"model-{number + 1:05d}.safetensors"
            files |= dict.fromkeys(shard, path.name)
            with path.open("xb") as file, ExitStack() as unfinished:
                unfinished.callback(path.unlink)
                file.write(_header(shard))
                for name, spec in shard.items():
                    for part in _values(rng, name, _nbytes(name, spec)):
                        file.write(part.data)
                        written += part.nbytes
                        yield written
                file.flush()
                os.fsync(file.fileno())
                unfinished.pop_all()
        index = {"metadata": {"total_size": written}, "weight_map": files}
        (folder / INDEX).write_text(json.dumps(index))
        (folder / "config.json").write_text(json.dumps(data))
    except OSError as e:
        raise LoadError(f"{e.filename or folder}: cannot be written: {e.strerror}") from None


def _specs(config: ModelConfig) -> dict[str, TensorSpec]:
    return names.target_tensors(config, (TARGET_PREFIX,))


def _dtype(name: str, spec: TensorSpec) -> str:
    return "F32" if name.endswith(_F32) else spec.dtypes[0]


def _nbytes(name: str, spec: TensorSpec) -> int:
    size = DTYPES[_dtype(name, spec)].itemsize
    for axis in spec.shapes[0]:
        size *= axis
    return size


def _shards(config: ModelConfig) -> Iterator[dict[str, TensorSpec]]:
    """The tensors in order, in files of about `SHARD_BYTES`."""
    shard: dict[str, TensorSpec] = {}
    size = 0
    for name, spec in _specs(config).items():
        if shard and size + _nbytes(name, spec) > SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = spec
        size += _nbytes(name, spec)
    yield shard


def _header(shard: Mapping[str, TensorSpec]) -> bytes:
    entries, start = {}, 0
    for name, spec in shard.items():
        offsets = [start, start + _nbytes(name, spec)]
        shape = list(spec.shapes[0])
        entries[name] = {"dtype": _dtype(name, spec), "shape": shape, "data_offsets": offsets}
        start = offsets[1]
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _values(rng: np.random.Generator, name: str, nbytes: int) -> Iterator[np.ndarray]:
    """The bytes of a tensor, in chunks."""
    for start in range(0, nbytes, _CHUNK):
        size = min(_CHUNK, nbytes - start)
        raw = np.frombuffer(rng.bytes(size), np.uint8)
        if name.endswith("weight_packed"):
            yield raw
        elif name.endswith("weight_scale"):
            yield raw % np.uint8(_SCALES) + np.uint8(_LEAST_SCALE)
        elif name.endswith(_F32):
            yield (raw.view(np.uint8)[: size // 4].astype(np.float32) / 256 - 0.5).view(np.uint8)
        else:  # bfloat16 of magnitudes from 2^-7 to 2^-6
            yield (raw.view("<u2") & np.uint16(0x807F) | np.uint16(0x3C00)).view(np.uint8)
