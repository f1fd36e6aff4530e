"""Buffers, budget and the whole plan."""

import dataclasses

import numpy as np
import pytest

from kimi.kernels import buffers
from kimi.kernels.buffers import BufferSpec, Space, storages
from kimi.kernels.chip import TPU_V7, padded_bytes
from kimi.kernels.errors import PlanError
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh, default_mesh
from kimi.kernels.plan import Plan, default_settings
from tests.unit.kernels.build import published, small_32

K3 = Layout(published(), Mesh(32, 2))
F32 = np.dtype(np.float32)
PHASES = ("a", "b", "c", "d")


def buffer(name, first, last, shape=(8, 128), **more):
    return BufferSpec(name, shape, F32, first, last, **more)


@pytest.mark.parametrize(
    "shape, dtype, expected",
    [((8, 128), np.float32, 4096), ((1, 1), np.float32, 4096), ((3, 9, 129), np.uint32, 3 * 16384),
     ((16, 128), np.float16, 4096), ((1, 128), np.float16, 4096), ((33, 128), np.uint8, 8192),
     ((5,), np.float32, 4096)],
)  # fmt: skip
def test_bytes_in_tiles(shape, dtype, expected):
    assert padded_bytes(shape, dtype) == expected


def test_buffers_take_turns():
    first = buffer("x", "a", "b", (8, 256), share="s")
    second = buffer("y", "c", "d", (16, 128), share="s")
    (found,) = storages([first, second], PHASES)
    assert (found.name, found.shape, found.buffers) == ("s", (16, 256), ("x", "y"))
    assert buffers.vmem_bytes([found]) == 16 * 256 * 4


@pytest.mark.parametrize(
    "second, named",
    [
        (buffer("y", "b", "d", share="s"), "y: shares 's' with x: .* b to d and a to b"),
        (buffer("y", "c", "d", share="s", remote=True), "y: peers write into it"),
        (buffer("y", "c", "d", (2, 8, 128), share="s"), "y: shares 's' with x: expected one dtype"),
        (buffer("y", "c", "d", share="s", space=Space.SMEM), "y: shares 's' with x: expected one"),
        (buffer("x", "c", "d", share="s"), "x: expected one entry in the table, found two"),
        (buffer("y", "c", "e"), "y: expected a phase of the plan, found 'e'"),
        (buffer("y", "d", "c"), "y: expected a life that ends after it begins, found d to c"),
    ],
)
def test_buffers_that_cannot_share_are_named(second, named):
    with pytest.raises(PlanError, match=named):
        storages([buffer("x", "a", "b", share="s"), second], PHASES)


@pytest.mark.parametrize("rows, used", [(1, 41.6), (8, 43.7)])
def test_the_published_model_fits(rows, used):
    plan = Plan(K3, default_settings(K3, rows, 131072))
    assert plan.settings.ring_tiles == 9 and plan.settings.expert_slots == 10
    total = buffers.vmem_bytes(plan.storages)
    assert total / 2**20 == pytest.approx(used, abs=0.5)
    sizes = {s.name: s.nbytes for s in plan.storages}
    assert sizes["ring"] == 9 * 3584 * 512 and sizes["experts"] == 10 * 2160 * 512
    assert sizes["residuals"] == 8 * 8 * 7168 * 4  # entries at layers 0, 12, ..., 84
    assert sizes["projections"] == 16 * 2304 * 4  # gate and up of the dense layer, 2 x 1056 padded


def test_too_much_is_refused_with_the_largest_buffers():
    settings = dataclasses.replace(default_settings(K3, 8, 1024), expert_slots=48)
    with pytest.raises(
        PlanError, match=r"VMEM of TPU v7: .* 63.90 MiB, found 8\d.* experts 50.62, ring 15.75, "
    ):
        Plan(K3, settings)


def test_too_much_context_is_refused():
    chip = dataclasses.replace(TPU_V7, hbm_bytes=50 * 10**9)
    with pytest.raises(PlanError, match="HBM of TPU v7: expected at most 50.00 GB"):
        Plan(K3, default_settings(K3, 1, 131072), chip)


@pytest.mark.parametrize(
    "field, value", [("rows", 0), ("rows", 9), ("ring_tiles", 0), ("expert_slots", 0),
                     ("expert_slots", 1), ("expert_slots", 2), ("context", 0),
                     ("cache_positions", 100), ("cache_slots", 1)],
)  # fmt: skip
def test_settings_that_cannot_be_are_named(field, value):
    settings = dataclasses.replace(default_settings(K3, 1, 1024), **{field: value})
    with pytest.raises(PlanError, match=f"plan: {field}: expected .*found {value}"):
        Plan(K3, settings)


@pytest.mark.parametrize(
    "context, sequences, positions",
    [(1, 1, 512), (1152, 1, 512), (2048, 1, 1024), (8192, 1, 2048), (131072, 1, 2048),
     (1152, 8, 512), (131072, 8, 1024)],
)  # fmt: skip
def test_tiles_of_the_cache(context, sequences, positions):
    """At least two fit into a context, if they can."""
    settings = default_settings(K3, sequences, context, sequences)
    assert settings.cache_positions == positions


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [1, 8])
def test_the_small_k3_has_a_plan_on_every_mesh(tiny, ranks, rows):
    layout = Layout(tiny.config, default_mesh(tiny.config, ranks))
    plan = Plan(layout, default_settings(layout, rows, 512))
    assert plan.storages and plan.program


def test_a_small_model_has_a_plan_on_32_ranks():
    layout = Layout(small_32(), default_mesh(small_32(), 32))
    assert Plan(layout, default_settings(layout, 8, 512)).program


def test_every_message_of_k3_is_one_row_of_words_per_token():
    """112 words of two bfloat16; 66 or 112 of float32; 56 and 28 of both: 512 bytes at most."""
    plan = Plan(K3, default_settings(K3, 8, 1024))
    sent = {t.name: t.sent_bytes(K3.mesh, 8) for t in plan.transfers if t.kind.remote}
    assert set(sent.values()) == {31 * 8 * 512} and len(sent) == 11


def test_rounds_of_the_published_layers():
    """One collective of a layer is bare; the others have work between start and wait."""
    plan = Plan(K3, default_settings(K3, 1, 1024))
    found = {
        kind.name: {r.transfer.name: r.cover for r in plan.rounds(kind)}
        for kind in K3.layer_of_kind
    }
    moe = {
        "attention_scatter": ("mlp_residuals",),
        "attention_gather": (),
        "route_gather": ("shared_in",),
        "latent_scatter": ("shared_out",),
        "mlp_scatter": ("latent_sum",),
        "latent_gather": ("shared_sum",),
        "layer_gather": ("attention_residuals",),
    }
    assert found["KDA + MoE"] == {"decay_gather": ("kda_in",)} | moe
    assert found["MLA + MoE"] == {"query_gather": ("mla_gate",)} | moe
    assert list(found["KDA + dense"]) == [
        "decay_gather", "attention_scatter", "attention_gather", "mlp_scatter", "layer_gather",
    ]  # fmt: skip
