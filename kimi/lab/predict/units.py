"""Vector-side instructions: which slot they fill and which interlocks they meet.

One bundle issues per cycle, but a bundle that needs a unit's result, or pushes into a unit faster
than it accepts, waits. Those waits are not visible as bundles. The latencies and cadences below are
those that libtpu's own static profiler charges for TPU7x; on compute the two agree within a few
percent.
"""

import re
from enum import Enum, auto
from typing import NamedTuple

XLANE_LATENCY = 141  # cross-lane reduce
PERMUTE_LATENCY = 127  # lane permute, rotate, broadcast
TRANSPOSE_LATENCY = 68
VECTOR_TO_SCALAR_LATENCY = 49
EUP_LATENCY = 10  # exp2, log2, rsqrt, ...
MATMUL_LATENCY = 211  # from the push of a row to its result
DIVREM_LATENCY = 9  # scalar division
PUSH_CADENCE, MATMUL_CADENCE, XLU_CADENCE = 4, 8, 4  # cycles between two accepts of one unit


class Interlock(Enum):
    """How an instruction meets a unit."""

    PUSH = auto()  # a weight row into a matrix unit
    MATMUL = auto()  # a left-hand row into a matrix unit; its result slot fills later
    MATMUL_RESULT = auto()  # reads a result slot
    CROSS_LANE = auto()  # occupies a cross-lane unit; its token is ready later
    PRODUCE = auto()  # its token is ready later, the unit accepts every cycle
    CONSUME = auto()  # needs a token


class UnitOp(NamedTuple):
    """One interlocked instruction.

    `token` is the value it produces or needs, `slot` the result slot of a matrix unit.
    """

    interlock: Interlock
    unit: str = ""
    token: str = ""
    slot: int = -1
    latency: int = 0


_PUSH = re.compile(r"vmatpush\d?\..*\.(mxu\d)$")
_RESULT_SLOT = re.compile(r"mrb\[(\d+)\]\.(mxu\d)")
_UNIT = re.compile(r"\.(mxu\d)")
_CROSS_LANE = re.compile(r"v\w+(?:\.index)?\.xlane\..*(xlu\d)$")
_XLU = re.compile(r"xlu\d")
_LAST_OPERAND = re.compile(r"%(\w+)\s*$")
_EUP = frozenset(
    f"{name}.{dtype}"
    for name in ("vrsqrt", "vrcp", "vexp2", "vpow2", "vlog2", "vtanh", "vsigshft", "vsinq", "vcosq")
    for dtype in ("f32", "bf16")
)
_PERMUTES = ("vperm.lane", "vrot.lane", "vbcast.lane")
_POPS = ("vpop.xlane", "vpop.permute", "vpop.trf", "vpop.eup")


def unit_op(opcode: str, token: str | None, text: str) -> UnitOp | None:
    """The interlock of an instruction, or None.

    Args:
      opcode: e.g. `vmatmul.mubr.bf16.vlgmr.msra.gmra.mrb`.
      token: the name of the value it defines.
      text: the instruction without comments.
    """
    if not opcode.startswith(("v", "spop", "sdivrem")):
        return None
    if push := _PUSH.match(opcode):
        return UnitOp(Interlock.PUSH, push[1])
    if opcode.startswith("vmatmul."):
        unit, slot = _UNIT.search(text), _RESULT_SLOT.search(text)
        return UnitOp(
            Interlock.MATMUL,
            unit[1] if unit else "mxu0",
            slot=int(slot[1]) if slot else -1,
            latency=MATMUL_LATENCY,
        )
    if opcode.startswith("vpop.f32.mrb"):
        slot = _RESULT_SLOT.search(text)
        return UnitOp(Interlock.MATMUL_RESULT, slot[2], slot=int(slot[1])) if slot else None
    if opcode.startswith(_POPS) or opcode in ("spop", "spop.drf"):
        source = _LAST_OPERAND.search(text)
        return UnitOp(Interlock.CONSUME, token=source[1]) if source else None
    return _producer(opcode, token) if token else None


def _producer(opcode: str, token: str) -> UnitOp | None:
    if lane := _CROSS_LANE.match(opcode):
        return UnitOp(Interlock.CROSS_LANE, lane[1], token, latency=XLANE_LATENCY)
    unit = _XLU.search(opcode)
    if opcode.startswith(_PERMUTES) and unit:
        return UnitOp(Interlock.CROSS_LANE, unit[0], token, latency=PERMUTE_LATENCY)
    if opcode.startswith("vxpose"):
        name = unit[0] if unit else ""
        return UnitOp(Interlock.CROSS_LANE, name, token, latency=TRANSPOSE_LATENCY)
    if opcode in _EUP:
        return UnitOp(Interlock.PRODUCE, "eup", token, latency=EUP_LATENCY)
    if opcode == "vpush":
        return UnitOp(Interlock.PRODUCE, "v2s", token, latency=VECTOR_TO_SCALAR_LATENCY)
    if opcode.startswith("sdivrem"):
        return UnitOp(Interlock.PRODUCE, "sdiv", token, latency=DIVREM_LATENCY)
    return None


def slot_of(opcode: str) -> str:
    """The issue slot an instruction fills: mxu, vld, vst, xlu, vpop, eup, valu, dma or scalar."""
    if opcode.startswith("vmat"):
        return "mxu"
    if opcode.startswith("vld"):
        return "vld"
    if opcode.startswith("vst"):
        return "vst"
    if opcode.startswith("vpop"):
        return "vpop"
    if ".xlane" in opcode or opcode.startswith(("vxpose", "vrot", "vperm", "vbcast.lane")):
        return "xlu"
    if opcode in _EUP:
        return "eup"
    if opcode.startswith("dma."):
        return "dma"
    if opcode.startswith(("vsync", "vwait", "vtrace", "vdelay")) or not opcode.startswith("v"):
        return "scalar"
    return "valu"
