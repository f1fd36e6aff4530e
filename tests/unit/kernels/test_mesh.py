"""Ranks, peers and shares, against examples worked by hand."""

import dataclasses

import pytest

from kimi.kernels.errors import LayoutError
from kimi.kernels.mesh import RANKS, Mesh, default_mesh, meshes
from tests.packing.target import experts_of
from tests.unit.kernels.build import published, small_32

K3 = published()


def test_the_slice_of_32():
    """Worked by hand for TP16xEP2."""
    mesh = Mesh(32, 2)
    assert mesh.name == "TP16xEP2" and mesh.tensor_parallel == 16
    assert mesh.coordinates(5) == (0, 1, 0, 1) and mesh.coordinates(26) == (1, 0, 3, 0)
    assert [mesh.host(r) for r in (0, 7, 8, 31)] == [0, 0, 1, 3]
    assert [r for r in range(32) if mesh.expert_group(r) == 1] == list(range(1, 32, 2))
    assert (mesh.expert_group(31), mesh.expert_slice(31)) == (1, 15)
    assert (mesh.owner(7), mesh.local_expert(7)) == (1, 3)
    assert mesh.expert_span(3072, 31) == (2880, 3072)
    assert mesh.span(96, 31) == (93, 96) and mesh.span(7168, 2) == (448, 672)


@pytest.mark.parametrize("ranks", RANKS)
def test_coordinates_and_ranks(ranks):
    mesh = Mesh(ranks)
    found = [mesh.coordinates(r) for r in range(ranks)]
    assert [mesh.rank_of(*c) for c in found] == list(range(ranks))
    assert len(set(found)) == ranks
    assert all(x < 2 and y < 2 and z < 4 and core < 2 for x, y, z, core in found)


@pytest.mark.parametrize("ranks", RANKS)
def test_every_round_is_a_pairing_and_all_pairs_meet_once(ranks):
    mesh = Mesh(ranks)
    met = set()
    for offset in mesh.offsets:
        pairs = [(r, mesh.peer(r, offset)) for r in range(ranks)]
        assert all(mesh.peer(b, offset) == a and a != b for a, b in pairs)
        met |= set(pairs)
    assert len(met) == ranks * (ranks - 1)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("groups", RANKS)
def test_every_slice_of_every_expert_has_one_holder(ranks, groups):
    if groups > ranks:
        with pytest.raises(LayoutError, match=f"expert_parallel: .* {ranks} ranks, found {groups}"):
            Mesh(ranks, groups)
        return
    mesh = Mesh(ranks, groups)
    held = {(e, mesh.expert_slice(r)) for r in range(ranks) for e in experts_of(mesh, r, K3)}
    assert len(held) == K3.num_experts * mesh.tensor_parallel
    for group in range(groups):
        own = experts_of(mesh, group, K3)
        assert [mesh.local_expert(e) for e in own] == list(range(len(own)))
        assert {mesh.owner(e) for e in own} == {group}
        assert [mesh.expert_slice(r) for r in range(group, ranks, groups)] == list(
            range(mesh.tensor_parallel)
        )


def test_the_default_is_tp16xep2_for_k3():
    assert default_mesh(K3, 32) == Mesh(32, 2)
    assert default_mesh(K3, 8) == Mesh(8, 1)


def test_small_experts_need_more_groups():
    """An inner width of 64 has two scale groups: two slices at most."""
    assert [m.name for m in meshes(small_32(), 32)] == ["TP2xEP16", "TP1xEP32"]


@pytest.mark.parametrize("ranks", [0, 3, 64])
def test_other_numbers_of_ranks_are_refused(ranks):
    with pytest.raises(LayoutError, match=f"ranks: expected one of .*, found {ranks}"):
        Mesh(ranks)
    with pytest.raises(LayoutError, match=f"found {ranks}"):
        default_mesh(K3, ranks)


@pytest.mark.parametrize(
    "field, value, named",
    [
        ("num_attention_heads", 48, "num_attention_heads: expected a multiple of 32 .* found 48"),
        ("hidden_size", 7184, "hidden_size: .* found 7184"),
        ("kv_lora_rank", 500, "kv_lora_rank . qk_rope_head_dim: .* found 564"),
        ("num_experts", 903, "num_experts: .* found 903"),
        ("moe_intermediate_size", 3104, "moe_intermediate_size: expected 16 slices .* found 3104"),
        ("vocab_size", 163841, "vocab_size: .* found 163841"),
    ],
)
def test_what_cannot_be_divided_is_named(field, value, named):
    config = dataclasses.replace(K3, **{field: value})
    with pytest.raises(LayoutError, match=named):
        Mesh(32, 2).check(config)


def test_kda_heads_that_cannot_be_divided_are_named():
    config = dataclasses.replace(K3, kda=dataclasses.replace(K3.kda, num_heads=40))
    with pytest.raises(LayoutError, match="linear_attn_config.num_heads: .* 32 ranks, found 40"):
        Mesh(32, 2).check(config)
