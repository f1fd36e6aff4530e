"""The time of a whole program, of hand-written modules and schedules."""

# ruff: noqa: E501

from dataclasses import replace

import pytest

from kimi.errors import InputError
from kimi.lab.predict.costs import ALLOWED, FREE, JOINT
from kimi.lab.predict.dump import parse_bundles
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.module import arrays, parse_module
from kimi.lab.predict.module_time import Cost, ModuleTime, Turns
from kimi.lab.predict.network import exchange_us
from kimi.lab.predict.prompt_report import part_of
from kimi.lab.predict.simulate import simulate
from kimi.lab.predict.timing import DEFAULT_SLICE
from tests.unit.lab.predict.snippets import EXCHANGE, HEADER

MODULE = """HloModule jit_f, is_scheduled=true

%sum.1 (param_0.1: f32[1024]) -> f32[1024] {
  %param_0.1 = f32[1024]{0:T(1024)} parameter(0)
  ROOT %add.1 = f32[1024]{0:T(1024)} add(%param_0.1, %param_0.1)
}

%sum.2 (param_0.9: f32[1024]) -> f32[1024] {
  %param_0.9 = f32[1024]{0:T(1024)} parameter(0)
  ROOT %add.7 = f32[1024]{0:T(1024)} add(%param_0.9, %param_0.9), metadata={op_name="other"}
}

%body.1 (p.1: (s32[], f32[1024])) -> (s32[], f32[1024]) {
  %p.1 = (s32[]{:T(128)}, f32[1024]{0:T(1024)}) parameter(0)
  %x.1 = f32[1024]{0:T(1024)} get-tuple-element(%p.1), index=1
  %twin.1 = f32[1024]{0:T(1024)} fusion(%x.1), kind=kLoop, calls=%sum.2, metadata={op_name="jit(f)/mix/while/body/add"}
  ROOT %t.1 = (s32[]{:T(128)}, f32[1024]{0:T(1024)}) tuple(%x.1, %twin.1)
}

%fixed.1 (p.2: (s32[], f32[1024])) -> pred[] {
  %p.2 = (s32[]{:T(128)}, f32[1024]{0:T(1024)}) parameter(0)
  %n.2 = s32[]{:T(128)} constant(3)
  %i.2 = s32[]{:T(128)} get-tuple-element(%p.2), index=0
  ROOT %lt.2 = pred[]{:T(512)} compare(%i.2, %n.2), direction=LT
}

%open.1 (p.3: (s32[], s32[])) -> pred[] {
  %p.3 = (s32[]{:T(128)}, s32[]{:T(128)}) parameter(0)
  %n.3 = s32[]{:T(128)} get-tuple-element(%p.3), index=1
  %i.3 = s32[]{:T(128)} get-tuple-element(%p.3), index=0
  ROOT %lt.3 = pred[]{:T(512)} compare(%i.3, %n.3), direction=LT
}

%gathered.1 (p.4: bf16[8,64]) -> bf16[32,64] {
  %p.4 = bf16[8,64]{1,0} parameter(0)
  ROOT %all-gather.4 = bf16[32,64]{1,0:T(8,128)(2,1)} all-gather(%p.4), dimensions={0}
}, execution_thread="sparsecore"

ENTRY %main.1 (a.1: f32[1024], b.1: bf16[8,64]) -> f32[1024] {
  %a.1 = f32[1024]{0:T(1024)} parameter(0)
  %b.1 = bf16[8,64]{1,0} parameter(1)
  %fusion.1 = f32[1024]{0:T(1024)} fusion(%a.1), kind=kLoop, calls=%sum.1, metadata={op_name="jit(f)/embedding/add"}
  %start.1 = ((), (), (s32[1]{0:T(128)S(2)})) call-start(), async_execution_thread="sparsecore", to_apply=%gathered.1
  %done.1 = bf16[32,64]{1,0} call-done(%start.1)
  %while.1 = (s32[]{:T(128)}, f32[1024]{0:T(1024)}) while(%fusion.1), condition=%fixed.1, body=%body.1
  %while.2 = (s32[]{:T(128)}, f32[1024]{0:T(1024)}) while(%fusion.1), condition=%open.1, body=%body.1
  %choice.1 = (s32[], f32[1024]) conditional(%a.1, %a.1, %a.1), branch_computations={%body.1, %sum.1}, metadata={op_name="jit(f)/kind/cond"}
  %copy-start.1 = (f32[1024]{0:T(1024)S(1)}, f32[1024]{0:T(1024)}, u32[]{:S(2)}) copy-start(%a.1)
  %copy-done.1 = f32[1024]{0:T(1024)S(1)} copy-done(%copy-start.1)
  ROOT %gather.1 = f32[1024]{0:T(1024)} fusion(%a.1, %b.1), kind=kCustom, calls=%fixed.1
}
"""
SCHEDULE = (
    HEADER
    + """
     0   :  { %s2_s1 = inlined_call_operand.hbm [shape: f32[1024], index: 0, kind: input] }
   0x1   :  { %3 = dma.hbm_to_vmem /*hbm=*/%s2_s1, /*size_in_granules=*/128, /*vmem=*/[#allocation3], /*dst_syncflagno=*/[#allocation4] }
   0x2   :  { %4 = dma.done.wait [#allocation4], 128 }
   0x3   :  { %5 = vsyncadd [#allocation4], 4294967168 }
"""
)


@pytest.fixture
def times(tmp_path):
    (tmp_path / "17-fusion.1-02-final_bundles.txt").write_text(SCHEDULE)
    return ModuleTime(parse_module(MODULE), tmp_path, ranks=4)


def test_runs_and_costs(times):
    items = times.items(Turns(5, {"kind": (0.25, 0.75)}))
    found = [(i.instruction.name, i.runs) for i in items]
    assert found == [
        ("fusion.1", 1), ("all-gather.4", 1), ("twin.1", 3), ("twin.1", 5), ("twin.1", 0.25),
        ("add.1", 0.75), ("copy-done.1", 1), ("gather.1", 1),
    ]  # fmt: skip
    first, exchange, twin, _, _, _, copy, gather = (i.cost for i in items)
    assert first.hbm_bytes == 4096 and first == twin
    moved = 3 / 4 * 32 * 64 * 2
    size = 32 * 64 * 2 / 4
    us = exchange_us(JOINT, DEFAULT_SLICE, ((n, size) for n in (1, 2, 3)))
    assert exchange.link_bytes == moved and exchange.us == pytest.approx(us)
    assert copy.hbm_bytes == 4096 and gather.hbm_bytes == 2 * 4096
    assert copy.unscheduled_us == copy.us > JOINT.hbm_latency_us
    assert [part_of(i) for i in items[:3]] == ["embedding", "exchanges", "residual mix"]
    total = sum((i.cost.times(i.runs) for i in items), Cost())
    assert total.us == pytest.approx(sum(i.cost.us * i.runs for i in items))


def test_a_choice_without_shares_is_refused(times):
    with pytest.raises(
        InputError, match=r"conditional choice.1 .*: expected shares of 2 .*found 0"
    ):
        times.items(Turns(5, {}))


def test_no_module():
    with pytest.raises(InputError, match="compiled module: expected an ENTRY computation"):
        parse_module("HloModule x\n")


def test_bytes_of_shapes():
    one, two, three = arrays("(bf16[8,64]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/s32[], pred[3]{0})")
    assert (one.nbytes, one.hbm) == (1024, False)
    assert (two.nbytes, two.hbm, three.nbytes) == (4, True, 3)


def test_an_operand_in_a_register(tmp_path):
    """The bound of a grid comes as a word, not in memory: so many turns."""
    schedule = (
        HEADER
        + """
     0   :  { %s1_s0 = inlined_call_operand.<no memory space> [shape: s32[], index: 0, kind: input]  ;;  %s9_s4 = smov 0 }
   0x1 LB: > { %s20_s4 = sphi %s9_s4, %s17_s4 } /* Start region 9 */
   0x2   : > { %s17_s4 = sadd.s32 1, %s20_s4 }
   0x3   : > { %p18_p0 = scmp.ge.s32.totalorder %s17_s4, %s1_s0 }
   0x4   :  { %21 = sbr.rel (!%p18_p0) target = $region9 }
   0x5   :  {}
   0x6   :  { %22 = vsyncpa [#allocation7], 1 }
"""
    )
    (tmp_path / "17-fusion.1-02-final_bundles.txt").write_text(schedule)
    module = parse_module(MODULE)
    us = [
        ModuleTime(module, tmp_path, 4, {"fusion": KernelInputs({0: [n]})}).items(
            Turns(0, {"kind": (1, 0)})
        )[0].cost.us
        for n in (1, 2, 5)
    ]  # fmt: skip
    assert us[2] - us[0] == pytest.approx(4 * (us[1] - us[0])) and us[1] > us[0]


def test_an_attribute_over_several_lines_ends_nothing():
    """What a kernel is configured with may hold a line that begins with braces."""
    cut = MODULE.replace(
        "calls=%sum.1, metadata",
        'calls=%sum.1, frontend_attributes={kernel="{\n  {a}\n}}", metadata',
    )
    assert cut != MODULE and "\n}}" in cut
    whole, found = (
        {n: [i.name for i in c.instructions] for n, c in parse_module(text).computations.items()}
        for text in (MODULE, cut)
    )
    assert found == whole
    [instruction] = [i for i in parse_module(cut).computations["main.1"].instructions
                     if i.name == "fusion.1"]  # fmt: skip
    assert instruction.path == "jit(f)/embedding/add" and instruction.called == ("sum.1",)


def test_another_network_changes_exchanges_alone(times):
    turns = Turns(1, {"kind": (1, 0)})
    one, two = times.items(turns), times.under(FREE).items(turns)
    for first, second in zip(one, two, strict=True):
        assert (first.cost != second.cost) == bool(first.cost.link_bytes)


def test_another_clock_changes_what_is_computed(times):
    turns = Turns(1, {"kind": (1, 0)})
    slow = replace(JOINT, name="slow", hbm_efficiency=JOINT.hbm_efficiency / 2)
    first, second = (t.items(turns)[0].cost.us for t in (times, times.under(slow)))
    assert second > first


def test_a_kernel_that_talks_to_peers_is_timed_by_its_trace(tmp_path):
    (tmp_path / "17-fusion.1-02-final_bundles.txt").write_text(EXCHANGE)
    times = ModuleTime(parse_module(MODULE), tmp_path, 4)
    turns = Turns(0, {"kind": (1, 0)})
    for costs in ALLOWED:
        [found] = simulate(parse_bundles(EXCHANGE), (costs,))
        cost = times.under(costs).items(turns)[0].cost if times.items(turns) else Cost()
        assert cost.us == pytest.approx(found.us) and cost.link_bytes == found.ici_bytes > 0
