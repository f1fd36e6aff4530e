"""What one TensorCore offers, as explicit figures.

They are never queried: a plan is the same on any machine.

Sources: TPU v7 as libtpu 0.0.50.1 compiles for it (`tpu7x`), and the public data sheet.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIB = 1 << 20
GIB = 1 << 30
LANES = 128  # of a vector register, on every TPU so far
SUBLANES = 8  # 32-bit rows of a vector register
WORD_BYTES = 4
ROW_BYTES = LANES * WORD_BYTES  # one row of 32-bit words: the unit of every weight and message here


def round_up(value: int, multiple: int) -> int:
    """The least multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def padded_bytes(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Bytes that an array occupies in VMEM, whose two minor axes come in tiles.

    A tile is 8 x 128 words, so 16 rows of bfloat16 and 32 of float8.
    """
    item = np.dtype(dtype).itemsize
    *lead, rows, lanes = (1, *shape) if len(shape) == 1 else shape
    tile_rows = SUBLANES * WORD_BYTES // item
    return math.prod(lead) * round_up(rows, tile_rows) * round_up(lanes, LANES) * item


@dataclass(frozen=True)
class ChipSpec:
    """One TensorCore, which is one JAX device and one rank.

    Attributes:
      name: for messages.
      vmem_bytes: usable by one kernel (`vmem_limit_bytes`).
      smem_bytes, semaphore_bytes: scalar and semaphore memory.
      hbm_bytes: as the compiler counts it.
      matmul_rows: rows of the left operand below which the matrix unit does not get faster.
      compiler_reserve_bytes: VMEM that spills and stack took in builds like this one.
    """

    name: str
    vmem_bytes: int
    smem_bytes: int
    semaphore_bytes: int
    hbm_bytes: int
    matmul_rows: int
    compiler_reserve_bytes: int


TPU_V7 = ChipSpec(
    name="TPU v7",
    vmem_bytes=int(63.9 * MIB),
    smem_bytes=1 * MIB,
    semaphore_bytes=16 * 1024,
    hbm_bytes=int(94.74 * GIB),
    matmul_rows=16,
    compiler_reserve_bytes=int(7.3 * MIB),
)
