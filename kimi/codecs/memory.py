"""Memory that is used again, and memory that JAX takes over."""

import math
import mmap
import threading

import numpy as np
import numpy.typing as npt

_buffers = threading.local()


def scratch[T: np.generic](name: str, shape: tuple[int, ...], dtype: type[T]) -> npt.NDArray[T]:
    """Uninitialised memory of this thread; the next call with the same name takes it back.

    Unlike fresh memory it is in the cache still, and needs no pages from the system.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    buffer: npt.NDArray[np.uint8] | None = getattr(_buffers, name, None)
    if buffer is None or buffer.size < size:
        buffer = zeroed((size,), np.uint8)
        setattr(_buffers, name, buffer)
    return buffer[:size].view(dtype).reshape(shape)


def zeroed[T: np.generic](shape: tuple[int, ...], dtype: type[T] | np.dtype[T]) -> npt.NDArray[T]:
    """Zeros in separate pages, large ones where there are, which JAX takes over as they are.

    For arrays of many megabytes, which are touched for the first time by those who fill them.
    """
    count = math.prod(shape)
    size = max(1, count * np.dtype(dtype).itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    else:
        memory = mmap.mmap(-1, size)
    return np.frombuffer(memory, dtype, count).reshape(shape)
