import pytest

from kimi.errors import InputError
from kimi.lab.predict.dump import parse_allocations, parse_bundles
from kimi.lab.predict.simulate import simulate
from kimi.lab.predict.units import Interlock
from tests.unit.lab.predict.snippets import ALLOCATIONS, HEADER, LOOP, SCALARS, SKIPPED


def test_addresses_depths_and_regions():
    program = parse_bundles(LOOP)
    assert [b.address for b in program.bundles] == list(range(15))
    assert [b.depth for b in program.bundles][5:13] == [0, 1, 1, 1, 1, 1, 1, 0]
    assert program.targets == {"9": 6}
    assert program.bundles[9].location == "k.py:12"


def test_comments_do_not_cut_instructions():
    first = parse_bundles(LOOP).bundles[0]
    assert [i.result for i in first.instructions] == ["s1_s0", "s2_s1"]


def test_guards_and_operands():
    guarded = parse_bundles(SCALARS).bundles[5].instructions[0]
    assert (guarded.predicate, guarded.negated, guarded.otherwise) == ("p7_p0", True, "s1_s0")
    assert guarded.operands == ["99"]
    copy = parse_bundles(LOOP).bundles[2].instructions[0]
    assert copy.operands == ["%s1_s0", "16", "%s4_s2", "[#allocation7]"]


def test_branch_window_ends_where_the_compiler_folded_the_empty_bundles():
    program = parse_bundles(LOOP)
    assert program.delay_slots(12, 6) == 1


def test_branch_window_is_six_bundles_otherwise():
    bundles = ["{ %1 = sbr.rel target = $region1 }", *["{ %2 = vadd.f32 %v1, %v2 }"] * 8]
    lines = [f"   0x{n:x}   : > {b}" for n, b in enumerate(bundles, start=1)]
    program = parse_bundles(HEADER + "\n".join(lines))
    assert program.delay_slots(0, 0) == 6


def test_no_bundles_is_an_error_that_names_the_source():
    with pytest.raises(InputError, match="kernel.txt"):
        parse_bundles("nothing here", "kernel.txt")


def test_allocations():
    found = parse_allocations(ALLOCATIONS)
    assert [(a.name, a.space, a.size_bytes, a.offset_bytes) for a in found] == [
        ("allocation0", "smem", 4, 0xFFF88),
        ("allocation4", "vmem", 0x38000, 0x1000),
        ("allocation5", "sflag", 8, 4),
    ]
    assert found[1].shape.startswith("bf16[16,7168]")


@pytest.mark.parametrize(
    "text,interlock,unit,token,slot",
    [
        ("%1 = vmatpush1.bf16.msra.mxu1 %v2_v3", Interlock.PUSH, "mxu1", "", -1),
        (
            "%1 = vmatmul.mubr.bf16.vlgmr.msra.gmra.mrb[4].mxu0 %v2_v4",
            Interlock.MATMUL,
            "mxu0",
            "",
            4,
        ),
        ("%v1_v2 = vpop.f32.mrb[5].mxu0", Interlock.MATMUL_RESULT, "mxu0", "", 5),
        ("%9 = vmax.xlane.f32.xlu1 %v3_v1", Interlock.CROSS_LANE, "xlu1", "9", -1),
        ("%v4_v1 = vpop.xlane.xlu1 %9", Interlock.CONSUME, "", "9", -1),
        ("%7 = vexp2.f32 %v3_v1", Interlock.PRODUCE, "eup", "7", -1),
        ("%7 = sdivrem.u32 %s3_s1, 24", Interlock.PRODUCE, "sdiv", "7", -1),
    ],
)
def test_unit_operations(text, interlock, unit, token, slot):
    [op] = parse_bundles(f"   0x1   :  {{ {text} }}").bundles[0].unit_ops
    assert (op.interlock, op.unit, op.token, op.slot) == (interlock, unit, token, slot)


def test_slots_count_instructions():
    assert parse_bundles(LOOP).slots["dma"] == 4


def test_a_skipped_wait_is_no_delay_slot():
    """Behind a bundle that stands for several, a wait is of the code that the branch skips."""
    program = parse_bundles(SKIPPED)
    first, second = (
        program.delay_slots(at, program.targets[region]) for at, region in ((1, "5"), (5, "6"))
    )
    assert (first, second) == (1, 6)
    [found] = simulate(program)
    assert found.unsatisfied == {} and found.smem["allocation1", 0] == 7
    assert found.cycles == 1 + (1 + 6) + (1 + 6) + 1
