"""Exact routing: ties, near-ties, union lists, and what NaN may not break."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kimi.config import ModelConfig
from kimi.kernels.ops import router
from kimi.kernels.routing import ListRow
from kimi.reference.moe import Router
from kimi.reference.numerics import matmul
from tests.conftest import DATA
from tests.tolerances import FORMULA
from tests.unit.kernels_ops.support import close

SCALING = 2.5
list_row = jax.jit(router.list_row, static_argnums=(3, 4, 5))
route_rows = jax.jit(router.route_rows, static_argnums=2)
union = jax.jit(router.union, static_argnums=3)


def owned(experts, low, high):
    """A rank that holds experts low .. high - 1."""
    ids = np.arange(experts)
    return jnp.asarray(np.tile((ids >= low) & (ids < high), (8, 1)))


SIZES = pytest.mark.parametrize("experts,k", [(896, 16), (32, 4), (200, 6)])


def scores(experts, k, kind, seed=0):
    """Biased and unbiased scores of eight rows."""
    rng = np.random.default_rng(seed)
    plain = 1 / (1 + np.exp(-rng.standard_normal((8, experts))))
    biased = (plain + 0.05 * rng.standard_normal((8, experts))).astype(np.float32)
    for row in biased:
        order = np.argsort(-row, kind="stable")
        if kind == "tie at the border":
            row[order[k - 2 : k + 4]] = row[order[k - 1]]
        elif kind == "near ties":  # one unit in the last place, the later id the larger
            ids = np.sort(order[k - 3 : k + 5])
            for i, e in enumerate(ids):
                row[e] = np.float32(0.9) + i * np.spacing(np.float32(0.9))
        elif kind == "few values":
            row[:] = np.round(row * 4) / 4
        elif kind == "all equal":
            row[:] = 0.5
        elif kind == "negative":
            row[:] = -np.abs(row) - 1
        elif kind == "signed zeros":  # equal in every comparison
            row[:] = np.where(rng.random(experts) < 0.5, 0.0, -0.0)
    return jnp.asarray(biased), jnp.asarray(plain, jnp.float32)


def expected(biased, plain, k):
    """ids and weights by a stable sort (lax.top_k puts -0.0 below 0.0, which argsort does not)."""
    ids = np.argsort(-np.asarray(biased), -1, kind="stable")[:, :k]
    chosen = np.take_along_axis(np.asarray(plain, np.float64), ids, -1)
    return ids, chosen / chosen.sum(-1, keepdims=True) * SCALING


KINDS = pytest.mark.parametrize(
    "kind",
    ["random", "tie at the border", "near ties", "few values", "all equal", "negative",
     "signed zeros"],
)  # fmt: skip


@SIZES
@KINDS
def test_one_row(experts, k, kind):
    biased, plain = scores(experts, k, kind)
    ids, weights = expected(biased, plain, k)
    if kind != "signed zeros":
        np.testing.assert_array_equal(ids, jax.lax.top_k(biased, k)[1])
    mine = np.arange(experts) % 2 == 1  # experts are dealt to two groups in turn
    for row in range(3):
        listed = list_row(
            biased[row : row + 1], plain[row : row + 1], jnp.asarray(mine[None]), k, SCALING, 16
        )
        own = mine[ids[row]]
        count = own.sum()
        np.testing.assert_array_equal(listed[ListRow.EXPERT, :count], ids[row][own])
        close(listed[0, :count], weights[row][own], FORMULA)
        np.testing.assert_array_equal(listed[ListRow.ROWS], np.arange(16) < count)
        np.testing.assert_array_equal(listed[ListRow.EXPERTS : ListRow.PAIRS + 1], count)
        assert not listed[:9, count:].any() and not listed[1:8].any()


@SIZES
@KINDS
def test_eight_rows(experts, k, kind):
    biased, plain = scores(experts, k, kind, 1)
    ids, weights = expected(biased, plain, k)
    selection = route_rows(biased, plain, k, SCALING)
    mask, full = np.zeros((2, 8, experts))
    np.put_along_axis(mask, ids, 1, -1)
    np.put_along_axis(full, ids, weights, -1)
    np.testing.assert_array_equal(selection.chosen, mask)
    close(selection.weights, full, FORMULA)


@SIZES
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("rows", [1, 5, 8])
@pytest.mark.parametrize("kind", ["random", "few values"])
def test_union_lists_every_expert_once(experts, k, half, rows, kind):
    """`few values` makes all rows choose nearly the same experts."""
    selection = route_rows(*scores(experts, k, kind, 2), k, SCALING)
    slots = -(-min(8 * k, experts // 2) // 16) * 16
    ids = np.arange(experts)
    mine = ids % 2 == half  # experts are dealt to two groups in turn
    listed = union(selection, rows, jnp.asarray(np.tile(mine, (8, 1))), slots)
    chosen = np.asarray(selection.chosen)[:rows] * mine
    ids = np.flatnonzero(chosen.max(0))
    assert len(ids) <= slots
    expected = np.zeros((16, slots), np.float32)
    expected[:rows, : len(ids)] = np.asarray(selection.weights)[:rows, ids]
    expected[ListRow.EXPERT, : len(ids)] = ids
    expected[ListRow.ROWS, : len(ids)] = (1 << np.arange(rows)) @ chosen[:, ids]
    expected[ListRow.EXPERTS] = len(ids)
    expected[ListRow.PAIRS] = np.ceil(chosen.sum(0) / 2).sum()
    np.testing.assert_array_equal(listed, expected)  # bit by bit


def test_a_rank_without_work_gets_an_empty_list():
    biased = jnp.broadcast_to(jnp.arange(32.0), (8, 32))  # everyone chooses 28..31
    selection = route_rows(biased, jnp.ones((8, 32)), 4, 1.0)
    assert not union(selection, 8, owned(32, 0, 16), 16).any()
    full = union(selection, 8, owned(32, 16, 32), 16)
    assert full[ListRow.EXPERTS, 0] == 4 and full[ListRow.PAIRS, 0] == 16
    np.testing.assert_array_equal(full[ListRow.EXPERT, :4], [28, 29, 30, 31])
    np.testing.assert_array_equal(full[ListRow.ROWS, :4], 255)
    np.testing.assert_array_equal(full[:8, :4], np.full((8, 4), 0.25))


def test_nan_scores_cannot_point_outside():
    biased, plain = scores(896, 16, "random")
    row, every = biased[:1].at[0, 100:300].set(jnp.nan), jnp.ones((1, 896), bool)
    listed = list_row(row, plain[:1], every, 16, 1.0, 16)
    ids = listed[ListRow.EXPERT]
    assert listed[ListRow.EXPERTS, 0] == 16 and not ((ids >= 100) & (ids < 300)).any()
    nothing = list_row(jnp.full_like(row, jnp.nan), plain[:1], every, 16, 1.0, 16)
    assert nothing[ListRow.EXPERTS, 0] == 0
    dead = biased.at[3:].set(jnp.nan), plain.at[3:].set(jnp.nan)
    whole, partly = (route_rows(*x, 16, 1.0) for x in ((biased, plain), dead))
    np.testing.assert_array_equal(partly.chosen[:3], whole.chosen[:3])
    lists = [union(x, 3, owned(896, 0, 448), 128) for x in (whole, partly)]
    np.testing.assert_array_equal(*lists)


def test_equals_the_reference_router():
    config = replace(
        ModelConfig.from_dir(DATA / "k3_tiny"), num_experts=32, num_experts_per_token=4
    )
    module = Router(config, nnx.Rngs(0))
    rng = np.random.default_rng(0)
    bias = jnp.asarray(0.3 * rng.standard_normal(config.num_experts), jnp.float32)
    module.e_score_correction_bias[...] = bias
    x = jnp.asarray(rng.standard_normal((8, config.hidden_size)), jnp.float32)
    ids, weights = module(x)
    plain = jax.nn.sigmoid(matmul(x, module.weight[...], jnp.float32))
    k, scaling = config.num_experts_per_token, config.routed_scaling_factor
    selection = route_rows(plain + bias, plain, k, scaling)
    close(jnp.take_along_axis(selection.weights, ids, -1), weights, FORMULA)
    assert (selection.chosen.sum(-1) == k).all()
    every = jnp.ones((1, config.num_experts), bool)
    for row in range(8):
        got = list_row((plain + bias)[row : row + 1], plain[row : row + 1], every, k, scaling, 16)
        np.testing.assert_array_equal(got[ListRow.EXPERT, :k], ids[row])
        close(got[0, :k], weights[row], FORMULA)
