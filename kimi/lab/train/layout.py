"""The finished run as a checkpoint in the public layout, drafter and vocabulary included."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kimi.config.model import TARGET_PREFIX
from kimi.lab.train import mxfp4
from kimi.lab.train.rounding import is_expert, is_float32
from kimi.lab.train.run import COPIED, DRAFTER, Run
from kimi.lab.train.weights import read_tensors, write_tensors
from kimi.reference.tensors import Tensors

Stored = dict[str, NDArray[np.generic]]

_A_LOG_SLOTS = 128  # the public checkpoint pads A_log to this many heads


def stored_target(tensors: Tensors) -> Stored:
    """A trained target in the formats of the public checkpoint: dtypes, packing, padding."""
    out: Stored = {}
    for name, value in tensors.items():
        if is_expert(name):
            out[name + "_packed"], out[name + "_scale"] = mxfp4.encode(value)
        elif name.endswith(".A_log"):
            out[name] = np.pad(value, (0, max(0, _A_LOG_SLOTS - len(value))))
        elif is_float32(name):
            out[name] = value
        else:
            out[name] = value.astype(ml_dtypes.bfloat16)
    return out


def shards(tensors: Stored, layers: int) -> list[Stored]:
    """One shard for each layer and one for the rest, tensors sorted by name."""
    parts: list[Stored] = [{} for _ in range(layers + 1)]
    for name in sorted(tensors):
        words = name.removeprefix(TARGET_PREFIX).split(".")
        layer = int(words[2]) if words[:2] == ["model", "layers"] else layers
        parts[layer][name] = tensors[name]
    return parts


def write_target(folder: Path, tensors: Stored, layers: int) -> None:
    """Writes the shards and their index."""
    parts = shards(tensors, layers)
    where: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05d}-of-{len(parts):06d}.safetensors"
        write_tensors(folder / file, part)
        where |= dict.fromkeys(part, file)
    total = sum(value.nbytes for value in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    text = json.dumps(index, indent=1)
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def write_drafter(folder: Path, tensors: Tensors) -> None:
    """Writes the drafter, all bfloat16, in one file."""
    narrow = {name: value.astype(ml_dtypes.bfloat16) for name, value in sorted(tensors.items())}
    write_tensors(folder / "model.safetensors", narrow)


def export(run: Run) -> None:
    """Writes `run.checkpoint` from the target and the calibrated drafter."""
    folder = run.checkpoint.with_suffix(".part")
    shutil.rmtree(folder, ignore_errors=True)
    target, drafter = read_tensors(run.target_file), read_tensors(run.calibrated_file)
    for name in COPIED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run.template / name, folder / name)
    write_target(folder, stored_target(target), run.config.num_hidden_layers)
    write_drafter(folder / DRAFTER, drafter)
    shutil.rmtree(run.checkpoint, ignore_errors=True)
    folder.replace(run.checkpoint)
    size = sum(file.stat().st_size for file in run.checkpoint.rglob("*") if file.is_file())
    print(
        f"{run.checkpoint}: {len(target)} and {len(drafter)} tensors, {size / 1e6:.1f} MB",
        flush=True,
    )
