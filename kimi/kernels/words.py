"""Numbers as 32-bit words, the way the compiler's register bitcast takes them apart again.

Everything the kernel streams is u32 [rows, 128]: any weight then fits any buffer, and no copy needs
a format of its own. Turning such a value into a narrower type multiplies its rows: row r of u32
holds rows 2r, 2r+1 of bfloat16, 4r .. 4r+3 of float8 and 8r .. 8r+7 of float4, the first in the
lowest bits. That is `pltpu.bitcast(value, dtype)`, and it is free or nearly so.

Arrays here are [K, N]: K contracted (the rows), N outputs (the lanes).
"""

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kimi.kernels.chip import LANES, round_up
from kimi.kernels.errors import LayoutError

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
Array = npt.NDArray[np.generic]

BF16 = np.dtype(ml_dtypes.bfloat16)


def bfloat16_bits(name: str, value: Array) -> U16:
    """The bits of values that bfloat16 holds exactly.

    Args:
      name: of the tensor, for messages.
      value: bfloat16, or float32 whose lower 16 bits are zero (some tools store everything so).
    Raises:
      LayoutError: another dtype, or a value that would have to be rounded.
    """
    if value.dtype == BF16:
        return value.view(np.uint16)
    if value.dtype != np.float32:
        raise LayoutError(f"{name}: expected bfloat16 or float32, found {value.dtype}")
    bits = np.ascontiguousarray(value).view(np.uint32)
    lost = (bits & 0xFFFF) != 0
    if lost.any():
        where = [int(i) for i in np.unravel_index(int(np.argmax(lost)), value.shape)]
        raise LayoutError(
            f"{name}: expected values that bfloat16 holds exactly, found "
            f"{value[tuple(where)]!r} at index {where}"
        )
    return (bits >> 16).astype(np.uint16)


def exact_float32(name: str, value: Array) -> npt.NDArray[np.float32]:
    """Widens bfloat16, passes float32. Raises LayoutError for another dtype."""
    if value.dtype not in (BF16, np.dtype(np.float32)):
        raise LayoutError(f"{name}: expected bfloat16 or float32, found {value.dtype}")
    return value.astype(np.float32)


def pad[T: np.generic](value: npt.NDArray[T], *shape: int) -> npt.NDArray[T]:
    """Zeros behind `value` up to `shape`."""
    return np.pad(value, [(0, want - have) for have, want in zip(value.shape, shape, strict=True)])


def packed_words(count: int) -> int:
    """Words of a row of so many bfloat16 values, whole lanes."""
    return round_up(-(-count // 2), LANES)


def pair_rows(bits: U16) -> U32:
    """[2R, N] 16-bit -> [R, N] words: rows 2r (low half) and 2r + 1."""
    return bits[0::2].astype(np.uint32) | bits[1::2].astype(np.uint32) << np.uint32(16)


def panels(words: U32) -> U32:
    """[R, N] -> [N/128, R, 128], zeros behind the last column."""
    rows, width = words.shape[0], round_up(words.shape[1], LANES)
    full = pad(words, rows, width)
    return full.reshape(rows, width // LANES, LANES).swapaxes(0, 1)


def pack_bf16(bits: U16) -> U32:
    """[R, N] 16-bit -> [R, ceil(N/2)] words: column i (low half) and column i + ceil(N/2).

    Both halves of an unpacked word are then contiguous columns. Also the format of messages.
    """
    middle = -(-bits.shape[1] // 2)
    upper = pad(bits[:, middle:], bits.shape[0], middle)
    return bits[:, :middle].astype(np.uint32) | upper.astype(np.uint32) << np.uint32(16)
