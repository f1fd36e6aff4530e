import pytest

from kimi.lab.predict.compile import Buffer
from kimi.lab.predict.failures import explain
from kimi.lab.predict.launch import Refused
from kimi.lab.predict.report import refusal_text

CAPACITY = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory \
space vmem. Used 80.01M of 63.94M vmem. Exceeded vmem capacity by 16.07M.

Program vmem requirement 80.01M:
    scoped           80.01M

  Largest program allocations in vmem:

  1. Size: 40.00M
     Operator: op_name="k"
     Shape: f32[81920,128]{1,0:T(8,128)}
     Unpadded size: 40.00M
     Tag: scratch operand
     XLA label: k.1
     Allocation type: scoped
     ==========================

  2. Size: 4.0K
     Operator: op_name="k"
     Shape: u8[4096]{0}
     Unpadded size: 4.0K
     Tag: input window
     XLA label: k.1
     Allocation type: scoped
     ==========================
"""


def test_capacity_error_lists_the_largest_buffers():
    error = explain(CAPACITY, "step")
    assert str(error) == "step: VMEM: expected at most 63.94MiB, found 80.01MiB (16.07MiB too much)"
    assert (error.kind, error.space) == ("CompileTimeVmemOom", "vmem")
    assert [(b.size, b.shape, b.tag) for b in error.largest] == [
        ("40.00M", "f32[81920,128]{1,0:T(8,128)}", "scratch operand"),
        ("4.0K", "u8[4096]{0}", "input window"),
    ]


def test_refusal_shows_both_tables():
    error = Refused(explain(CAPACITY, "step"), [Buffer("ring", "vmem", 2**25)])
    text = refusal_text(error)
    assert text.startswith("error: step: VMEM")
    assert "f32[81920,128]" in text and "32.00 MiB" in text and "ring" in text


@pytest.mark.parametrize(
    "message,kind,part",
    [
        ("INTERNAL: Mosaic failed to compile TPU kernel: bad op\nmore", "MosaicError", "bad op"),
        ("something new\nand more", "CompileError", "something new"),
        ("", "CompileError", "no message"),
    ],
)
def test_other_messages_keep_their_first_line(message, kind, part):
    error = explain(message, "step")
    assert error.kind == kind and part in str(error) and "\n" not in str(error)
