"""Options, what the kernel is fed, names, and the comparison: all that needs no compiler."""

import math

import numpy as np
import pytest

from kimi.assets import TINY_K3
from kimi.config import ModelConfig
from kimi.errors import InputError
from kimi.kernels.mesh import Mesh
from kimi.kernels.refs import scratch_shapes
from kimi.kernels.routing import ListRow
from kimi.lab.predict.bundles import Allocation, Program
from kimi.lab.predict.costs import ALLOWED
from kimi.lab.predict.dump import SCRATCH, parse_bundles
from kimi.lab.predict.feed import expert_lists, fullest_groups, kernel_inputs, list_buffer
from kimi.lab.predict.launch import Kernel
from kimi.lab.predict.peer import Peer, matrix_rows
from kimi.lab.predict.report import Comparison, comparison_fields, comparison_text
from kimi.lab.predict.simulate import simulate
from kimi.lab.predict.skeleton import skeleton_inputs
from kimi.lab.predict.subjects import StepOptions, display_names, traffic_by_family
from tests.unit.kernels.traffic import expert_load
from tests.unit.lab.predict.snippets import EXCHANGE, LOOP

SMALL = StepOptions(model=str(TINY_K3), topology="tpu7x:2x2x1", context=100)


def kernel_of(allocations: list[Allocation]) -> Kernel:
    return Kernel("decode.1", Program([]), allocations)


def allocation(number: int, space: str = "vmem", tag: str = SCRATCH) -> Allocation:
    return Allocation(f"allocation{number}", "f32[16,128]{1,0}", space, 8192, 0, tag)


def test_titles_name_the_form_of_the_step():
    assert StepOptions().title == "Kimi K3, 1 row after 1152 tokens, mxfp4 experts, tpu7x:2x2x4"
    assert "a block of 8 rows" in StepOptions(rows=8, block=True).title
    assert "8 sequences" in StepOptions(rows=8).title
    assert SMALL.title.startswith("tiny_k3, ")


@pytest.mark.parametrize("rows,block,sequences", [(1, False, 1), (8, True, 1), (8, False, 8)])
def test_the_plan_has_the_form_and_room_for_the_step(rows, block, sequences):
    plan = StepOptions(rows=rows, block=block, context=1150).plan()
    assert (plan.rows.count, plan.rows.sequences) == (rows, sequences)
    assert plan.layout.mesh.ranks == 32
    assert plan.settings.context >= 1150 + rows and plan.settings.context % 128 == 0


@pytest.mark.parametrize("groups", [2, 8])
@pytest.mark.parametrize("rows", [1, 8])
def test_drawn_groups_are_the_fullest_ones_on_average(rows, groups):
    config, mesh = ModelConfig.published(), Mesh(32, groups)
    drawn = fullest_groups(config, mesh, rows, 92)
    expected = expert_load(config, mesh, rows)
    assert len(drawn) == 92
    assert np.mean([ids.size for _, ids in drawn]) == pytest.approx(expected.slowest, rel=0.02)
    for chosen, ids in drawn:
        assert chosen.shape == (rows, ids.size) and chosen.any(0).all()
        assert len({int(mesh.owner(e)) for e in ids}) == 1 and (np.diff(ids) > 0).all()


def test_lists_are_words_as_the_kernel_makes_them():
    plan = StepOptions(rows=3, block=True, model=str(TINY_K3), topology="tpu7x:2x2x1").plan()
    lists = expert_lists(plan, plan.rows.count)
    assert len(lists) == len(plan.layout.moe_layers)
    for words in lists:
        values = np.array(words, np.uint32).view(np.float32).reshape(ListRow.SIZE, -1)
        count = int(values[ListRow.EXPERTS, 0])
        weights, bits = values[:3, :count], values[ListRow.ROWS, :count].astype(int)
        assert ((weights > 0) == (bits[None] >> np.arange(3)[:, None] & 1)).all()
        turns = sum(-(-int(b).bit_count() // 2) for b in bits)
        assert values[ListRow.PAIRS, 0] == turns
        assert (values[:, count:][: ListRow.EXPERTS] == 0).all()


def test_the_kernel_is_fed_table_step_list_and_rank():
    options = StepOptions(rows=3, block=True, model=str(TINY_K3), topology="tpu7x:2x2x1")
    plan = options.plan()
    rank = allocation(9, "smem", "smem constant byte address 0xfff88 - partition id location")
    inputs = kernel_inputs(plan, kernel_of([allocation(27, "smem"), rank]), 100)
    assert set(inputs.operands) == {0, 1} and set(inputs.fills) == {"allocation27"}
    assert list(inputs.operands[1]) == [0] * 8 + [100] + [0] * 7 + [3, 3]
    assert inputs.words == {"allocation9": 0}


@pytest.mark.parametrize("count", [0, 2])
def test_a_kernel_with_another_scalar_memory_is_refused(count):
    allocations = [allocation(n, "smem") for n in range(count)]
    with pytest.raises(InputError, match="one SMEM buffer"):
        list_buffer(kernel_of(allocations))


def test_buffers_have_the_names_of_the_plan():
    plan = SMALL.plan()
    count = len(scratch_shapes(plan))
    # The compiler does without some: the numbers tell which.
    allocations = [allocation(3 + i) for i in range(count) if i not in (5, 7)]
    names = display_names(plan, kernel_of(allocations))
    assert names["allocation3"] == plan.storages[0].name == "ring"
    assert names[f"allocation{2 + count}"] == "token_gather received"
    assert names["input 2"] == "dense" and names["output 9"] == "appended"
    with pytest.raises(InputError, match=f"expected {count} scratch operands, found {count - 1}"):
        display_names(plan, kernel_of(allocations[:-1]))


def test_traffic_counts_both_directions_of_an_array():
    found = traffic_by_family({"input 2": 50, "input 6": 3, "output 8": 4, "output 10": 1, "x": 2})
    assert found == {"dense": 50, "KDA states": 7, "x": 2, "results": 1}


def test_the_peer_holds_what_it_is_known_to_hold():
    """By hand, MB per core: KDA layer 55.0, MLA layer 71.7, expert 7.016; 5.40 GB of 92 layers."""
    peer = Peer(ModelConfig.published(), 1, 1152)
    size = {name: 2 * math.prod(shape) for name, shape in peer.matrices.items()}
    moe = 2 * (7168 * 448 + 7168 * 128 + 7168 * 384 + 192 * 7168 + 3584 * 1024)
    kda = 2 * (7168 * 1664 + 7168 * 128 + 768 * 3584) + moe
    mla = 2 * (7168 * (1536 + 640 + 384) + (1536 + 512) * 768 + 768 * 3584) + moe
    names = ("kda_in", "decay", "kda_out", "q_a", "kv_a", "q_b", "kv_b", "gate", "mla_out")
    assert sum(size.values()) == kda + mla - moe
    assert sum(size[n] for n in names[:3]) == kda - moe
    assert 68 * kda + 24 * mla == pytest.approx(5.404e9, rel=1e-3)
    gate_up, down = 3584 * 1536, 768 * 3584 // 2
    scales = 4 * 8 * 1536 + 768 * 3584 // 32
    assert peer.expert_rows * 512 == gate_up + down + scales == 7_016_448
    rows = {name: matrix_rows(*shape) for name, shape in peer.matrices.items()}
    assert peer.buffer_rows("pool") == sum(rows[n] for n in names[:3]) > 4 * peer.expert_rows


def test_the_skeleton_is_fed_the_fullest_of_eight_groups():
    rank = allocation(9, "smem", "smem constant byte address 0xfff88 - partition id location")
    inputs = skeleton_inputs(kernel_of([allocation(2, "smem"), rank]), 8)
    lists = inputs.fills["allocation2"]
    assert len(lists) == 92 and sum(inputs.operands[0]) == 24
    counts = [words[128] for words in lists]
    expected = expert_load(ModelConfig.published(), Mesh(32, 8), 8).slowest
    assert np.mean(counts) == pytest.approx(expected, rel=0.02)
    assert all(max(words[:128]) < 112 for words in lists)


def test_the_comparison_divides_model_by_model():
    step, peer = (tuple(simulate(parse_bundles(text), ALLOWED)) for text in (LOOP, EXCHANGE))
    compared = Comparison(step, peer)
    ratios = [s.us / p.us for s, p in zip(step, peer, strict=True)]
    assert compared.ratios == ratios
    assert comparison_fields(compared)["predicted_ratios"] == [round(r, 4) for r in ratios]
    text = comparison_text(compared)
    low, high = (f"{x:.2f}" for x in (min(ratios), max(ratios)))
    for part in (f"{low} to {high}", f"{ratios[0]:.3f}", "warning: skeleton"):
        assert part in text


def test_fewer_live_rows_ask_for_fewer_experts():
    plan = StepOptions(rows=8, block=True).plan()
    turns = [
        sum(np.array(words, np.uint32).view(np.float32).reshape(ListRow.SIZE, -1)[ListRow.PAIRS, 0]
            for words in expert_lists(plan, live))
        for live in (1, 4, 8)
    ]  # fmt: skip
    assert turns[0] < turns[1] / 3 < turns[2] / 5
