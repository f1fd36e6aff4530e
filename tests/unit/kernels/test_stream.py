"""Tiles read as a kernel reads them: block by block, in the documented forms."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi.kernels.layout import Layout
from kimi.kernels.matrix import Matrix, Piece
from kimi.kernels.mesh import Mesh
from kimi.kernels.stream import cut, pack_tiles
from tests.unit.kernels.build import published, small_32


def matrix(name, inputs, outputs):
    return Matrix(name, (Piece(name, (0, outputs), (0, inputs)),))


def value(bits):
    return bits.view(ml_dtypes.bfloat16).astype(np.float64)


def rows_of(words):
    """What the bitcast to bfloat16 makes of [R, 128] words: [2R, 128]."""
    both = np.stack([words & 0xFFFF, words >> 16], 1).astype(np.uint16)
    return value(both.reshape(-1, 128))


def multiply(x, m, stream, tiles):
    """x [B, K] @ m, from the blocks in their order."""
    padded = np.zeros((len(x), max(m.panel_inputs, m.tail_inputs)))
    padded[:, : x.shape[1]] = x
    out = np.zeros((len(x), m.panels * 128 + m.tail_outputs))
    for b in stream.blocks_of(m.name):
        words = tiles[b.tile, b.row : b.row + b.rows]
        k0, k1 = b.inputs
        if b.panels is None:  # chunks side by side along lanes, contracted with the lanes of x
            chunks = np.split(words, (k1 - k0) // 128)
            out[:, m.panels * 128 :] += (
                padded[:, k0:k1] @ np.concatenate([rows_of(c) for c in chunks], 1).T
            )
        else:  # panels side by side along lanes
            p0, p1 = b.panels
            sides = [rows_of(p) for p in np.split(words, p1 - p0)]
            out[:, p0 * 128 : p1 * 128] += padded[:, k0:k1] @ np.concatenate(sides, 1)
    return out[:, : m.outputs]


SIZES = st.tuples(st.integers(1, 700), st.integers(1, 700))


@settings(max_examples=25, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=4), st.sampled_from([256, 512, 1000, 3584]))
def test_blocks_multiply_like_the_matrix(sizes, tile_rows):
    rng = np.random.default_rng(0)
    ms = [matrix(f"m{i}", *size) for i, size in enumerate(sizes)]
    weights = {m.name: rng.standard_normal((m.outputs, m.inputs)) for m in ms}
    stored = {n: w.astype(ml_dtypes.bfloat16) for n, w in weights.items()}
    stream = cut(ms, tile_rows)
    tiles = pack_tiles(stream, ms, lambda piece: stored[piece.tensor].view(np.uint16))
    for m in ms:
        x = rng.standard_normal((3, m.inputs))
        expected = x @ stored[m.name].astype(np.float64).T
        np.testing.assert_allclose(multiply(x, m, stream, tiles), expected, rtol=0, atol=1e-9)


LAYOUTS = {
    "k3": lambda: Layout(published(), Mesh(32, 2)),
    "k3, 1 MiB tiles": lambda: Layout(published(), Mesh(32, 2), tile_rows=2048),
    "small": lambda: Layout(small_32(), Mesh(32, 16), tile_rows=256),
    "small, one rank": lambda: Layout(small_32(), Mesh(1)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_lie_in_order_without_overlap_and_aligned(name):
    layout = LAYOUTS[name]()
    for stream in (*layout.streams.values(), layout.head_stream):
        position = 0
        order = [m.name for m in stream.matrices]
        for b in stream.blocks:
            start = b.tile * stream.tile_rows + b.row
            assert start >= position and b.row + b.rows <= stream.tile_rows
            assert b.row % 8 == 0 and b.inputs[0] % 128 == 0
            position = start + b.rows
        assert [b.matrix for b in stream.blocks] == sorted(
            (b.matrix for b in stream.blocks), key=order.index
        )
        assert {b.tile for b in stream.blocks} == set(range(stream.tiles))
        assert stream.arrivals(order) == stream.releases(order) == stream.tiles


@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_cover_every_matrix_once(name):
    layout = LAYOUTS[name]()
    for stream in layout.streams.values():
        for m in stream.matrices:
            blocks = stream.blocks_of(m.name)
            front = sum(
                (b.panels[1] - b.panels[0]) * (b.inputs[1] - b.inputs[0])
                for b in blocks
                if b.panels
            )
            tail = sum(b.inputs[1] - b.inputs[0] for b in blocks if not b.panels)
            assert front == m.panels * m.panel_inputs
            assert tail == (m.tail_inputs if m.tail_outputs else 0)


def test_forms_of_published_matrices():
    """By hand: 1543 in-projections are 12 panels and a tail; 224 columns a panel and a tail."""
    layout = Layout(published(), Mesh(32, 2))
    kda = {m.name: m for m in layout.matrices(1, 0)}
    assert list(kda) == [
        "kda_gates", "kda_in", "kda_decay", "kda_out", "route", "shared_in", "shared_out",
        "latent_up",
    ]  # fmt: skip
    forms = {n: (m.inputs, m.outputs, m.panels, m.tail_outputs) for n, m in kda.items()}
    assert forms["kda_gates"] == (7168, 4 + 3, 0, 16)
    assert forms["kda_in"] == (7168, 4 * 384, 12, 0)
    assert forms["kda_decay"] == (128, 384, 3, 0)
    assert forms["kda_out"] == (384, 7168, 56, 0)
    assert forms["route"] == (7168, 112 + 28, 1, 16)
    assert forms["shared_in"] == (7168, 2 * 192, 3, 0)
    assert forms["latent_up"] == (3584, 224, 1, 96)
    mla = {m.name: m for m in layout.matrices(3, 0)}
    assert (mla["mla_down"].outputs, mla["mla_down"].tail_outputs) == (48 + 18, 80)
    assert (mla["mla_query"].outputs, mla["mla_query"].panels) == (3 * 192, 4)
    assert (mla["mla_key_2"].inputs, mla["mla_key_2"].outputs) == (128, 512)
    assert (mla["mla_value_2"].inputs, mla["mla_value_2"].outputs) == (512, 128)


def test_a_remainder_as_wide_as_a_panel_is_one():
    assert (matrix("m", 64, 127).panels, matrix("m", 64, 127).tail_outputs) == (1, 0)
    assert (matrix("m", 64, 112).panels, matrix("m", 64, 112).tail_outputs) == (0, 112)
