"""Checkpoint tensors to rank arrays and back: nothing lost, nothing misplaced."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from kimi.assets import TINY_K3
from kimi.checkpoint import Checkpoint
from kimi.codecs import mxfp4
from kimi.errors import CheckpointError
from kimi.kernels.errors import LayoutError
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh, default_mesh
from tests.packing.target import pack, pack_embedding, unpack
from tests.unit.kernels.build import published, random_tensors, small_32

PREFIX = "language_model.model."


def bits(value):
    """What must be equal: bytes of integers, float32 bits of floats (wider ones come back)."""
    if value.dtype == np.uint8:
        return value
    return np.ascontiguousarray(value.astype(np.float32)).view(np.uint32)


def assert_round_trip(layout, tensors):
    ranks = [pack(layout, tensors, rank) for rank in range(layout.mesh.ranks)]
    for arrays in ranks:
        for name, shape in layout.shapes.items():
            assert getattr(arrays, name).shape == shape, name
    found = unpack(layout, ranks)
    for name, value in tensors.items():
        if layout.expert_format is ExpertFormat.FP8 and name.endswith("_packed"):
            stem = name.removesuffix("_packed")
            decoded = mxfp4.decode(value, tensors[f"{stem}_scale"])
            np.testing.assert_array_equal(bits(found.pop(stem)), bits(decoded), stem)
        elif layout.expert_format is ExpertFormat.MXFP4 or not name.endswith("_scale"):
            assert found[name].shape == value.shape, name
            np.testing.assert_array_equal(bits(found.pop(name)), bits(value), name)
    assert not found


@pytest.fixture(scope="module")
def tiny_tensors():
    return dict(Checkpoint.open(TINY_K3))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_small_k3_comes_back_bit_by_bit(ranks, tiny, tiny_tensors):
    mesh = default_mesh(tiny.config, ranks)
    assert_round_trip(Layout(tiny.config, mesh), tiny_tensors)


@pytest.mark.parametrize(
    "ranks, groups, form",
    [(1, 1, "mxfp4"), (32, 32, "mxfp4"), (32, 16, "mxfp4"), (32, 16, "fp8"), (2, 2, "fp8")],
)
def test_a_random_model_comes_back_bit_by_bit(ranks, groups, form):
    """On 32 ranks: three channels of the stream, one head of attention and two of KDA a rank."""
    config = small_32()
    layout = Layout(config, Mesh(ranks, groups), ExpertFormat(form))
    assert_round_trip(layout, random_tensors(config))


@pytest.mark.parametrize("tile_rows", [256, 264, 1000, 3584])
def test_any_tile_holds_any_matrix(tile_rows):
    config = small_32()
    layout = Layout(config, Mesh(1), tile_rows=tile_rows)
    assert_round_trip(layout, random_tensors(config))


def test_float32_files_pass_if_bfloat16_holds_them():
    config = small_32()
    tensors = random_tensors(config)
    wide = {n: v if v.dtype == np.uint8 else v.astype(np.float32) for n, v in tensors.items()}
    assert_round_trip(Layout(config, Mesh(4, 2)), wide)


def test_a_weight_that_would_be_rounded_is_refused():
    config = small_32()
    tensors = random_tensors(config)
    name = f"{PREFIX}layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name].astype(np.float32)
    tensors[name][3, 5] = 1.0000001
    with pytest.raises(LayoutError, match=r"q_proj.weight: expected values that bfloat16 .*1.0000"):
        pack(Layout(config, Mesh(1)), tensors, 0)


def test_a_dtype_that_nobody_expects_is_refused():
    config = small_32()
    tensors = random_tensors(config)
    name = f"{PREFIX}norm.weight"
    tensors[name] = tensors[name].astype(np.float16)
    with pytest.raises(LayoutError, match=r"norm.weight: expected bfloat16 or float32.*float16"):
        pack(Layout(config, Mesh(1)), tensors, 0)


@pytest.mark.parametrize(
    "name",
    ["norm.weight", "layers.1.self_attn.kv_b_proj.weight", "embed_tokens.weight",
     "layers.2.block_sparse_moe.experts.31.w2.weight_scale"],
)  # fmt: skip
def test_a_missing_tensor_is_named(name):
    config = small_32()
    tensors = random_tensors(config)
    del tensors[PREFIX + name]
    layout = Layout(config, Mesh(2, 2))
    with pytest.raises(CheckpointError, match=f"{name}: missing"):
        for rank in range(2):
            pack(layout, tensors, rank)


def test_dense_experts_are_refused():
    config = dataclasses.replace(small_32(), quantized_experts=False)
    with pytest.raises(LayoutError, match="expected a model with MXFP4 experts"):
        Layout(config, Mesh(1))


@pytest.mark.parametrize("rows", [128, 300, -8])
def test_tiles_that_cannot_be_are_refused(rows):
    with pytest.raises(LayoutError, match=f"tile_rows: expected a multiple of 8 .* found {rows}"):
        Layout(small_32(), Mesh(1), tile_rows=rows)


def test_shapes_of_the_published_model():
    """By hand: 448 experts a rank and layer, 2160 rows each; 112 word columns of the embedding."""
    layout = Layout(published(), Mesh(32, 2))
    assert layout.shapes == {
        "dense": (42 + 68 * 22 + 24 * 15 + 40, 3584, 128),
        "vectors": (94, 416, 128),
        "experts": (92 * 448, 2160, 128),
        "embedding": (163840, 128),
    }
    assert [kind.name for kind in layout.layer_of_kind] == ["KDA + dense", "KDA + MoE", "MLA + MoE"]
    assert layout.first_tiles[:3] == (0, 42, 64) and layout.expert_position(2, 895) == 448 + 447


def test_what_ranks_hold_of_the_published_layers():
    """Every dense tensor is covered once by the pieces of all ranks; nothing is held twice."""
    layout = Layout(published(), Mesh(32, 2))
    for layer in layout.layer_of_kind.values():
        sizes: dict[str, int] = {}
        for rank in range(32):
            for matrix in layout.matrices(layer, rank):
                for piece in matrix.pieces:
                    size = int(np.prod(piece.shape))
                    sizes[piece.tensor] = sizes.get(piece.tensor, 0) + size
        assert sizes["self_attn.o_proj.weight"] == 7168 * 12288
        if layer == 3:
            assert sizes["self_attn.kv_b_proj.weight"] == 24576 * 512
            assert sizes["self_attn.kv_a_proj_with_mqa.weight"] == 576 * 7168
            assert sizes["block_sparse_moe.gate.weight"] == 896 * 7168


def test_the_embedding_holds_halves():
    config = small_32()
    tensors = random_tensors(config)
    words = pack_embedding(Layout(config, Mesh(2, 2)), tensors, 1)
    table = tensors[f"{PREFIX}embed_tokens.weight"]
    low = (words & 0xFFFF).astype(np.uint16).view(ml_dtypes.bfloat16)
    high = (words >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(low[:, :24], table[:, 48:72])
    np.testing.assert_array_equal(high[:, :24], table[:, 72:])
    assert not words[:, 24:].any()
