"""Values that no trained weight has."""

import ml_dtypes
import numpy as np
import numpy.typing as npt

from kimi.errors import CheckpointError

# Bits that are all set in infinities and NaNs (E4M3 has NaNs only).
_SPECIAL: dict[np.dtype, np.generic] = {
    np.dtype(ml_dtypes.bfloat16): np.uint16(0x7F80),
    np.dtype(np.float16): np.uint16(0x7C00),
    np.dtype(np.float32): np.uint32(0x7F80_0000),
    np.dtype(ml_dtypes.float8_e4m3fn): np.uint8(0x7F),
}
_CHUNK = 1 << 16  # values: what is masked stays in the cache


def check_finite(name: str, array: npt.NDArray[np.generic], first: int = 0) -> None:
    """Raises CheckpointError with the first index at which a float array is NaN or infinite.

    `first` is the row of the tensor that the array begins with. Arrays of integers pass. Works on
    the bits, as not every dtype here has `isfinite` at speed.
    """
    special = _SPECIAL.get(array.dtype)
    if special is None:
        return
    bits = array.reshape(-1).view(special.dtype)
    masked = np.empty(min(bits.size, _CHUNK), special.dtype)
    for start in range(0, bits.size, _CHUNK):
        part = bits[start : start + _CHUNK]
        exponents = np.bitwise_and(part, special, out=masked[: part.size])
        if exponents.max() == special:
            flat = start + int(np.argmax(exponents))
            index = [int(i) for i in np.unravel_index(flat, array.shape)]
            value = array.reshape(-1)[flat]
            if index:
                index[0] += first
            raise CheckpointError(f"{name}: expected finite values, found {value} at index {index}")
