"""Byte totals of the published model against hand arithmetic, and estimates of routing."""

import pytest

from kimi.kernels import budget
from kimi.kernels.chip import TPU_V7
from kimi.kernels.errors import PlanError
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.kernels.records import Rows
from tests.unit.kernels.build import published
from tests.unit.kernels.traffic import (
    Load,
    dense_payload,
    dense_tile_bytes,
    expert_load,
    step_bytes,
)

K3 = published()
LAYOUT = Layout(K3, Mesh(32, 2))
TILE = 3584 * 512


def test_dense_bytes_by_matrix():
    """bfloat16 bytes of a rank's thirty-second, layer by layer."""
    found, tiles = dense_payload(LAYOUT), dense_tile_bytes(LAYOUT)
    assert found == {
        "kda_gates": 69 * 7168 * (4 + 3) * 2,
        "kda_in": 69 * 7168 * 4 * 384 * 2,
        "kda_decay": 69 * 128 * 384 * 2,
        "kda_out": 69 * 384 * 7168 * 2,
        "mla_down": 24 * 7168 * (48 + 18) * 2,
        "mla_gate": 24 * 7168 * 384 * 2,
        "mla_query": 24 * 1536 * 576 * 2,
        "mla_key": 24 * 512 * 384 * 2,
        "mla_value": 24 * 512 * 384 * 2,
        "mla_out": 24 * 384 * 7168 * 2,
        "route": 92 * 7168 * (112 + 28) * 2,
        "shared_in": 92 * 2 * 7168 * 192 * 2,
        "shared_out": 92 * 7168 * 192 * 2,
        "latent_up": 92 * 3584 * 224 * 2,
        "dense_in": 2 * 7168 * 1056 * 2,
        "dense_out": 7168 * 1056 * 2,
        "head": 7168 * 5120 * 2,
    }
    assert tiles == (42 + 68 * 22 + 24 * 15 + 40) * TILE == 3_556_245_504
    # With the embedding and the small tensors these are all published bytes but the experts'.
    small = 93 * 6 * 7168 * 2 + 3 * 7168 * 2 + 24 * (1536 + 512) * 2 + 92 * (896 * 4 + 3584 * 2)
    small += 69 * (3 * 12288 * 4 + 128 + 12288 + 128) * 4
    assert 32 * found.total() + 163840 * 7168 * 2 + small == 113_509_540_864
    assert 1 - found.total() / tiles < 0.03


def test_a_step_stays_within_the_goal_of_dense_bytes():
    step = step_bytes(LAYOUT, rows=1, context=0, load=Load(16, 8))
    assert step.dense + step.small < 3.61e9 and step.dense < 3.6e9
    assert step.experts == 92 * 8 * 1_105_920 and step.cache == 0
    vectors, states = 94 * 416 * 512, 2 * 69 * 456 * 512
    assert step.small == vectors + states + 512
    assert step.total == step.dense + step.small + step.experts


def test_a_step_grows_with_context_and_rows():
    """24 layers, 288 words a position."""
    one = step_bytes(LAYOUT, 1, 1000, Load(16, 8))
    assert one.cache == 24 * 1000 * 288 * 4


def test_hbm_held():
    held = budget.held_bytes(LAYOUT, Rows(8), 131072)
    assert held["experts"] == 92 * 448 * 1_105_920
    assert held["embedding"] == 163840 * 512
    assert held["MLA cache"] == 24 * (131072 + 128) * 1152  # a block for rows that are given up
    budget.check_hbm(LAYOUT, TPU_V7, Rows(8), 131072)


def test_fp8_experts_fit_but_not_with_every_context():
    layout = Layout(K3, Mesh(32, 2), ExpertFormat.FP8)
    assert 90.2e9 < sum(budget.held_bytes(layout, Rows(1), 0).values()) < 90.4e9
    budget.check_hbm(layout, TPU_V7, Rows(1), 131072)
    with pytest.raises(PlanError, match=r"HBM of TPU v7: .* largest: experts 86.61 GB, MLA cache"):
        budget.check_hbm(layout, TPU_V7, Rows(1), 1048576)


@pytest.mark.parametrize(
    "rows, groups, slowest",
    [(1, 1, 16), (1, 2, 9.57), (1, 4, 6.12), (1, 8, 4.16), (8, 1, 120.25), (8, 2, 64.1),
     (8, 4, 35.3), (8, 8, 20.3)],
)  # fmt: skip
def test_uniform_routing(rows, groups, slowest):
    """Against an independent estimate; without groups exactly 896 (1 - (1 - 16/896)^rows)."""
    load = expert_load(K3, Mesh(32, groups), rows)
    assert load.slowest == pytest.approx(slowest, rel=0.02)
    assert load.total == pytest.approx(896 * (1 - (1 - 16 / 896) ** rows), rel=0.01)


def test_skew_shares_experts_between_rows():
    mesh = Mesh(32, 2)
    even, skewed = (expert_load(K3, mesh, 8, skew) for skew in (0, 1))
    assert skewed.total < 0.8 * even.total
    assert expert_load(K3, mesh, 1, 1).total == 16


def test_two_groups_move_the_fewest_bytes():
    """The reason for the default mesh: one group wastes bytes on padding, more wait for one."""
    for rows in (1, 8):
        totals = {}
        for groups in (1, 2, 4, 8):
            mesh = Mesh(32, groups)
            load = expert_load(K3, mesh, rows)
            totals[groups] = step_bytes(Layout(K3, mesh), rows, 0, load).total
        assert min(totals, key=totals.__getitem__) == 2
