"""Values and arithmetic of the scalar unit: 32-bit words, float32 in the same registers, pointers.

A register holds a word (an `int` below 2**32) or a `Pointer`. Addresses matter only as far as they
decide timing: which buffer, which semaphore, whether on another core.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

MASK = 0xFFFFFFFF
# The core's coordinates are or-ed into a semaphore address above its local range: chip and core.
REMOTE_BIT = 4096
_CHIP_SHIFT, _CORE_SHIFT = 17, 14


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address: memory space (hbm, vmem, alloc), buffer name, offset, coordinates of a peer.

    The offset counts semaphores or SMEM words; byte offsets into VMEM and HBM are dropped. Of an
    address on this core the coordinates are 0.
    """

    space: str
    name: str
    offset: int = 0
    coordinates: int = 0

    def moved(self, words: int = 0, coordinates: int = 0) -> "Pointer":
        """The address `words` further on, on a peer with these bits in its coordinates."""
        return replace(self, offset=self.offset + words, coordinates=self.coordinates | coordinates)

    @property
    def remote(self) -> bool:
        """Whether it is on a peer."""
        return self.coordinates != 0

    @property
    def core(self) -> int:
        """The peer's number in the slice."""
        return self.coordinates >> _CHIP_SHIFT << 1 | self.coordinates >> _CORE_SHIFT & 1

    @property
    def key(self) -> tuple[str, int]:
        """Buffer and offset: names one semaphore or one SMEM word."""
        return self.name, self.offset


Value = int | Pointer


def number(value: Value) -> int:
    """The word in a register; a pointer counts as its offset."""
    return value if isinstance(value, int) else value.offset


def signed(word: int) -> int:
    """Two's complement reading of a word."""
    word &= MASK
    return word - (1 << 32) if word & 0x80000000 else word


def to_float(word: int) -> float:
    """The float32 whose bits are `word`."""
    return float(struct.unpack("<f", struct.pack("<I", word & MASK))[0])


def from_float(value: float) -> int:
    """The bits of `value` rounded to float32; overflow becomes infinity."""
    try:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def float_to_int(word: int) -> int:
    """Float to int32: towards zero, saturating; NaN gives 0."""
    value = to_float(word)
    if math.isnan(value):
        return 0
    return int(max(-(2.0**31), min(2.0**31 - 1, value))) & MASK


def div_rem(a: int, b: int) -> tuple[int, int]:
    """Unsigned quotient and remainder; dividing by zero gives all ones and `a`."""
    return divmod(a, b) if b else (MASK, a)


Binary = Callable[[int, int], int]


def _on_floats(operation: Callable[[float, float], float]) -> Binary:
    return lambda a, b: from_float(operation(to_float(a), to_float(b)))


def _rounded(operation: Callable[[float], float]) -> Binary:
    def apply(a: int, _: int) -> int:
        value = to_float(a)
        return from_float(operation(value)) if math.isfinite(value) else a & MASK

    return apply


# Opcode -> function of two words; unary operations ignore the second.
ARITHMETIC: dict[str, Binary] = {
    "smov": lambda a, _: a,
    "sadd.s32": lambda a, b: (a + b) & MASK,
    "ssub.s32": lambda a, b: (a - b) & MASK,
    "smul.u32": lambda a, b: (a * b) & MASK,
    "smulhi.u32": lambda a, b: (a * b) >> 32,
    "sshll.u32": lambda a, b: (a << b) & MASK if b < 32 else 0,
    "sshllo.u32": lambda a, b: (((a + 1) << min(b, 32)) - 1) & MASK,  # ones come in
    "sshrl.u32": lambda a, b: a >> b if b < 32 else 0,
    "sshra.s32": lambda a, b: (signed(a) >> min(b, 31)) & MASK,
    "sand.u32": lambda a, b: a & b,
    "sor.u32": lambda a, b: a | b,
    "sxor.u32": lambda a, b: a ^ b,
    "smin.u32": min,
    "smax.u32": max,
    "smin.s32": lambda a, b: min(signed(a), signed(b)) & MASK,
    "smax.s32": lambda a, b: max(signed(a), signed(b)) & MASK,
    "sclz.u32": lambda a, _: 32 - a.bit_length(),
    "sc.u32": lambda a, b: int(a + b > MASK),  # carry of an addition
    "sadd.f32": _on_floats(lambda a, b: a + b),
    "ssub.f32": _on_floats(lambda a, b: a - b),
    "smul.f32": _on_floats(lambda a, b: a * b),
    "smin.f32": _on_floats(min),
    "smax.f32": _on_floats(max),
    "sfloor.f32": _rounded(math.floor),
    "sceil.f32": _rounded(math.ceil),
    "scvt.s32.f32": lambda a, _: from_float(signed(a)),
    "scvt.f32.s32": lambda a, _: float_to_int(a),
    "pnand": lambda a, b: int(not (a and b)),
    "pand": lambda a, b: int(bool(a and b)),
    "por": lambda a, b: int(bool(a or b)),
    "pnor": lambda a, b: int(not (a or b)),
    "pxor": lambda a, b: int(bool(a) != bool(b)),
    "pneg": lambda a, _: int(not a),
    "pmov": lambda a, _: a,
}
_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_READINGS: dict[str, Callable[[int], float]] = {
    "s32": signed,
    "u32": lambda word: word,
    "f32": to_float,
}


def _comparison(relation: Callable[[float, float], bool], read: Callable[[int], float]) -> Binary:
    return lambda a, b: int(relation(read(a), read(b)))


for _name, _relation in _RELATIONS.items():
    for _dtype, _read in _READINGS.items():
        _order = "partialorder" if _dtype == "f32" else "totalorder"
        ARITHMETIC[f"scmp.{_name}.{_dtype}.{_order}"] = _comparison(_relation, _read)


def pointer_arithmetic(opcode: str, a: Value, b: Value) -> Value:
    """The result of an operation of which an operand is a pointer.

    Small additions step through semaphores or SMEM words; setting high bits addresses a peer;
    everything else keeps the buffer, which is all that timing needs.
    """
    pointer, other = (a, b) if isinstance(a, Pointer) else (b, a)
    assert isinstance(pointer, Pointer)
    words = 0 if isinstance(other, Pointer) else other
    if opcode.startswith("scmp"):
        return int(opcode.startswith("scmp.ne"))
    if opcode.startswith("sadd") and 0 <= words < REMOTE_BIT:
        return pointer.moved(words)
    if opcode.startswith(("sadd", "sor", "sxor")):
        return pointer.moved(coordinates=words if words >= REMOTE_BIT else 0)
    return pointer


def immediate(text: str) -> int | None:
    """The word an operand text spells: integer, hexadecimal or float; None if it is no number."""
    try:
        return int(text, 0) & MASK
    except ValueError:
        pass
    try:
        return from_float(float(text))
    except ValueError:
        return None
