"""Small checkpoints for the tests, written byte by byte so that they can be broken at will."""

import copy
import json
from pathlib import Path

import ml_dtypes
import numpy as np

from kimi.assets import TINY_K3
from kimi.checkpoint import names
from kimi.checkpoint.files import DTYPES
from kimi.config import DraftConfig, ModelConfig

TARGET = json.loads((TINY_K3 / "config.json").read_text())
DRAFT = json.loads((TINY_K3 / "dspark" / "config.json").read_text())
INDEX = "model.safetensors.index.json"


def small_target() -> dict:
    """A K3 of two layers, dense KDA and sparse MLA, in which all sizes differ."""
    data = copy.deepcopy(TARGET)
    data["text_config"] |= dict(
        vocab_size=2048, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, intermediate_size=40, q_lora_rank=20, kv_lora_rank=12,
        qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=10, num_experts=2,
        num_experts_per_token=1, moe_intermediate_size=32, routed_expert_hidden_size=64,
    )  # fmt: skip
    data["text_config"]["linear_attn_config"] |= dict(
        full_attn_layers=[2], kda_layers=[1], num_heads=5, head_dim=8
    )
    return data


def zeros(specs: dict) -> dict[str, np.ndarray]:
    """Tensors of the first form and dtype allowed; scale bytes are 127."""
    tensors = {}
    for name, spec in specs.items():
        fill = 127 if name.endswith("weight_scale") else 0
        tensors[name] = np.full(spec.shapes[0], fill, DTYPES[spec.dtypes[0]])
    return tensors


def target_tensors(config: dict) -> dict[str, np.ndarray]:
    return zeros(names.target_tensors(ModelConfig.from_dict(config), ()))


def draft_tensors(config: dict) -> dict[str, np.ndarray]:
    return zeros(names.draft_tensors(DraftConfig.from_dict(config), names.DRAFT_OPTIONAL))


_NAMES = {
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(np.uint8): "U8",
    np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64",
}


def header_of(tensors: dict[str, np.ndarray]) -> dict:
    header, start = {}, 0
    for name, value in tensors.items():
        end = start + value.nbytes
        dtype = _NAMES[value.dtype]
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [start, end]}
        start = end
    return header


def write_raw(path: Path, header: str | bytes | dict, data: bytes = b"") -> Path:
    """A safetensors file with any header at all."""
    if isinstance(header, dict):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def write_file(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    return write_raw(path, header_of(tensors), b"".join(v.tobytes() for v in tensors.values()))


def write_folder(path: Path, config: dict, shards: dict[str, dict[str, np.ndarray]]) -> Path:
    """A folder with config, index and shards."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    for file, tensors in shards.items():
        write_file(path / file, tensors)
    size = sum(v.nbytes for tensors in shards.values() for v in tensors.values())
    files = {name: file for file, tensors in shards.items() for name in tensors}
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (path / INDEX).write_text(json.dumps(index))
    return path


def edit_index(path: Path, edit) -> None:
    index = json.loads((path / INDEX).read_text())
    edit(index)
    (path / INDEX).write_text(json.dumps(index))
