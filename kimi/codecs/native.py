"""Machine code for loops that numpy would make many passes of."""

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np


def _array(dtype: Any, axes: int, layout: Any, given: bool = False) -> Any:
    """Bytes that other programs wrote may start anywhere and may not be written to."""
    return numba.types.Array(dtype, axes, layout, readonly=given, aligned=False)


# Arguments: any stride between rows.
U64_ROWS = _array(numba.uint64, 2, "A", given=True)
U8_ROWS = _array(numba.uint8, 2, "A", given=True)
# Results: packed as numpy packs arrays.
U64_PANELS = _array(numba.uint64, 3, "C")
U8_PANELS = _array(numba.uint8, 3, "C")

intp = numba.intp


def inlined[F: Callable[..., object]](function: F) -> F:
    """A formula for use in `compiled` functions; may be called by itself as well."""
    return cast(F, numba.njit(inline="always")(function))


def compiled[F: Callable[..., object]](*types: Any) -> Callable[[F], F]:
    """A function of such arguments, compiled when it is defined (seconds), that runs without the
    interpreter's lock. Indices are not checked."""

    def compile(function: F) -> F:
        return cast(F, numba.njit([types], nogil=True, error_model="numpy")(function))

    return compile


def bytes_of(byte: int) -> np.uint64:
    """A word of eight equal bytes."""
    return np.uint64(byte * 0x0101010101010101)
