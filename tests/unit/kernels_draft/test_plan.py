"""The draft kernel's buffers and schedule."""

import dataclasses

import pytest

from kimi.kernels import schedule
from kimi.kernels.buffers import vmem_bytes
from kimi.kernels.draft import phases
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.draft.plan import DraftPlan, default_settings
from kimi.kernels.errors import PlanError
from kimi.kernels.mesh import Mesh
from tests.unit.kernels_draft.build import published_draft

DRAFTER = DraftLayout(*published_draft(), Mesh(32))
PLAN = DraftPlan(DRAFTER, default_settings(DRAFTER))


def test_the_published_drafter_fits():
    """Ring 31.5 MiB, both Markov tables 2.5 each, context 2.5."""
    sizes = {s.name: s.nbytes / 2**20 for s in PLAN.storages}
    assert sizes["ring"] == 31.5 and PLAN.settings.ring_tiles == 18
    assert sizes["markov_in"] == sizes["markov_out"] == sizes["cache"] == 2.5
    assert vmem_bytes(PLAN.storages) / 2**20 == pytest.approx(44.4, abs=0.5)


def test_exchanges_of_the_published_drafter():
    """Embedding and taps; two pairs a layer; the anchor and eight tokens. By hand: what each sends
    to 31 peers."""
    assert len(list(schedule.rounds(PLAN.program, PLAN.transfers))) == 2 + 5 * 4 + 1 + 8
    sent = {t.name: t.sent_bytes(DRAFTER.mesh, 8) for t in PLAN.transfers if t.kind.remote}
    assert sent["embed_gather"] == 31 * 2 * 512
    assert sent["odd_gather"] == sent["even_gather"] == 31 * 3 * 512
    assert {v for n, v in sent.items() if n.startswith(("fuse", "attention", "mlp"))} == {
        31 * 8 * 512
    }


def test_one_exchange_for_all_rows_would_be_overtaken():
    """Peers that are ahead would write into what is still being read: hence two that take turns."""

    def same(steps):
        pairs = tuple((phases.TURNS[0] if n in phases.TURNS else n, k) for n, k in steps)
        return pairs

    def buffer(name):
        return name.replace(phases.TURNS[1], phases.TURNS[0])

    program = [
        dataclasses.replace(
            step, waits=same(step.waits), starts=same(step.starts),
            reads=tuple(map(buffer, step.reads)), writes=tuple(map(buffer, step.writes)),
        )
        for step in PLAN.program
    ]  # fmt: skip
    found = schedule.problems(program, PLAN.transfers, PLAN.buffers, phases.PHASES)
    assert any("peers may write into odd_gather_receive" in line for line in found)
    assert not schedule.problems(PLAN.program, PLAN.transfers, PLAN.buffers, phases.PHASES)


@pytest.mark.parametrize("tiles", [0, 1000])
def test_rings_that_cannot_be_are_refused(tiles):
    with pytest.raises(PlanError, match=f"ring_tiles: expected 1 to 124 tiles, found {tiles}"):
        DraftPlan(DRAFTER, dataclasses.replace(PLAN.settings, ring_tiles=tiles))


def test_too_large_a_ring_is_refused_with_the_largest_buffers():
    settings = dataclasses.replace(PLAN.settings, ring_tiles=40)
    with pytest.raises(PlanError, match=r"VMEM of TPU v7: .*largest buffers in MiB: ring 70.00"):
        DraftPlan(DRAFTER, settings)


@pytest.mark.parametrize("field, value", [("block_size", 9), ("head_dim", 48)])
def test_sizes_that_cannot_be_are_named(field, value):
    config, target = published_draft()
    layout = DraftLayout(dataclasses.replace(config, **{field: value}), target, Mesh(1))
    with pytest.raises(PlanError, match=f"draft plan: {field}: expected .*found {value}"):
        DraftPlan(layout, default_settings(layout))
