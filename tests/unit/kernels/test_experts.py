"""Expert blocks read as a kernel reads them, against decoded weights."""

import numpy as np
import pytest

from kimi.checkpoint import PackedWeight
from kimi.codecs import arithmetic, fp8, mxfp4, transposed
from kimi.codecs.native import inlined
from kimi.errors import CodecError
from kimi.kernels.errors import LayoutError
from kimi.kernels.experts import ExpertBlock, ExpertFormat, slice_expert
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from tests.packing.inverses import decoded, unpack_expert
from tests.unit.kernels.build import published


def weight(rng, rows, inputs):
    return PackedWeight(
        rng.integers(0, 256, (rows, inputs // 2), np.uint8),
        rng.integers(118, 126, (rows, inputs // 32), np.uint8),
    )


def expert(latent, width, seed=0):
    rng = np.random.default_rng(seed)
    return weight(rng, width, latent), weight(rng, width, latent), weight(rng, latent, width)


def product(x, form, block):
    """x [K] times one matrix of a block, by the rules that the module states."""
    per_word, group = form.format.per_word, form.format.group
    padded = np.zeros(max(form.padded_inputs, form.scale_groups * 8 * group))
    padded[: form.inputs] = x
    out = np.zeros(form.panels * 128)
    for panel in range(form.panels):
        row = form.row + panel * form.panel_rows
        words = block[row : row + form.panel_rows]
        bits = 32 // per_word
        rows = np.stack([words >> (bits * j) & (2**bits - 1) for j in range(per_word)], 1)
        codes = rows.reshape(-1, 128).astype(np.uint8)
        values = mxfp4.VALUES[codes] if per_word == 8 else codes.view(fp8.FP8).astype(np.float64)
        full = np.zeros((len(padded), 128))
        full[: len(values)] = values
        for g in range(form.scale_groups):
            start, byte = form.chunk(g, panel)
            scale = ((block[start : start + 8] >> (8 * byte) & 255) << 23).view(np.float32)
            rows = slice(g * 8 * group, (g + 1) * 8 * group)
            partial = (padded[rows, None] * full[rows]).reshape(8, group, 128).sum(1)
            out[panel * 128 : (panel + 1) * 128] += (partial * scale).sum(0)
    return out


@pytest.mark.parametrize("form", ExpertFormat)
@pytest.mark.parametrize("latent, width", [(3584, 192), (256, 32), (64, 64), (544, 288)])
def test_a_block_multiplies_like_the_weights(form, latent, width):
    gate, up, down = expert(latent, width)
    block = ExpertBlock(form, latent, width)
    words = block.pack(gate, up, down)
    assert words.shape == (block.rows, 128) and words.dtype == np.uint32
    rng = np.random.default_rng(1)
    x, h = rng.standard_normal(latent), rng.standard_normal(width)
    found = product(x, block.gate_up, words)
    expected = np.concatenate([decoded(gate, np.float64) @ x, decoded(up, np.float64) @ x])
    np.testing.assert_allclose(found[: 2 * width], expected, rtol=1e-12, atol=1e-12)
    assert not found[2 * width :].any()
    found = product(h, block.down, words)
    np.testing.assert_allclose(
        found[:latent], decoded(down, np.float64) @ h, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("form", ExpertFormat)
def test_a_block_comes_back(form):
    weights = expert(160, 96)
    block = ExpertBlock(form, 160, 96)
    for before, after in zip(weights, unpack_expert(block, block.pack(*weights)), strict=True):
        np.testing.assert_array_equal(decoded(after), decoded(before))
        if form is ExpertFormat.MXFP4:
            np.testing.assert_array_equal(after.packed, before.packed)
            np.testing.assert_array_equal(after.scale, before.scale)


def test_rows_of_the_published_expert():
    """By hand, TP16: 3 panels of 448 rows, 42 chunks in 11 blocks; 28 panels of 24, 7 blocks."""
    block = Layout(published(), Mesh(32, 2)).expert_block
    assert block.gate_up.scale_row == 3 * 448 and block.gate_up.stop == 1344 + 88
    assert block.down.scale_row == 1432 + 28 * 24 and block.rows == 2104 + 56
    assert block.nbytes == 2160 * 512
    assert block.gate_up.chunk(13, 2) == (1344 + 8 * 10, 1)
    fp8_block = Layout(published(), Mesh(32, 2), ExpertFormat.FP8).expert_block
    # 3 panels of 896 rows, 6 chunks in 2 blocks; 28 panels of 48, 28 chunks in 7 blocks.
    assert fp8_block.rows == 2688 + 16 + 1344 + 56


def test_slices_cover_an_expert():
    weights = expert(64, 128)
    parts = [slice_expert(weights, start, start + 32) for start in range(0, 128, 32)]
    for i, axis in ((0, 0), (1, 0), (2, 1)):
        whole = np.concatenate([decoded(p[i]) for p in parts], axis)
        np.testing.assert_array_equal(whole, decoded(weights[i]))


def test_a_slice_through_a_scale_group_is_refused():
    with pytest.raises(LayoutError, match="multiples of 32, found 16 and 48"):
        slice_expert(expert(64, 64), 16, 48)


def test_a_scale_byte_that_is_none_is_refused():
    gate, up, down = expert(64, 32)
    up.scale[5, 1] = 255
    with pytest.raises(CodecError, match="row 37, group 1: .* found 255"):
        ExpertBlock(ExpertFormat.MXFP4, 64, 32).pack(gate, up, down)


@pytest.mark.parametrize("latent, width", [(544, 96), (160, 288)])
def test_exponents_that_lie_far_apart_take_the_long_way(latent, width):
    """Blocks that the fast re-encoding does not take, in gate and up or in down."""
    for which in (1, 2):
        weights = expert(latent, width)
        weights[which].scale[3, 1], weights[which].packed[3, 16:32] = 110, 0x22  # ones
        block = ExpertBlock(ExpertFormat.FP8, latent, width)
        for before, after in zip(weights, unpack_expert(block, block.pack(*weights)), strict=True):
            np.testing.assert_array_equal(decoded(after), decoded(before))


@pytest.mark.parametrize("form", ExpertFormat)
def test_every_word_of_a_block_is_set(form):
    """Also where only padding lies; and memory used before leaves nothing behind."""
    block = ExpertBlock(form, 160, 96)
    expert_words = block.pack(*expert(160, 96))
    block.pack(*expert(160, 96, seed=1))
    out = np.full((block.rows, 128), 0xFFFFFFFF, np.uint32)
    np.testing.assert_array_equal(block.pack(*expert(160, 96), out), expert_words)


@inlined
def _wrong(codes, k):
    """Of code 10 in the last byte of a word."""
    right = arithmetic.assemble(codes, k)
    return right ^ np.uint64(codes >> np.uint64(56) == np.uint64(0x0A))


def test_a_wrong_code_is_an_error(monkeypatch):
    """Wherever it happens: in gate, up or down."""
    monkeypatch.setattr(transposed, "_ENCODE", transposed._encoder(_wrong, arithmetic.definition))
    for which in range(3):
        weights = expert(64, 32)
        for i, w in enumerate(weights):
            w.packed[...] = 0x11
            if i == which:
                w.packed[7, 5] = 0xA1
        with pytest.raises(CodecError, match="expected the MXFP4 codes when read back"):
            ExpertBlock(ExpertFormat.FP8, 64, 32).pack(*weights)
