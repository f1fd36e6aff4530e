"""Memory that JAX takes over as it is."""

import math

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes; what JAX's CPU backend asks of memory that it does not copy


def aligned[T: np.generic](shape: tuple[int, ...], dtype: type[T]) -> npt.NDArray[T]:
    """An uninitialised array at such a place."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
