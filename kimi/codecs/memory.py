"""Memory of the loader's own."""

import math
import mmap
import threading

import numpy as np
import numpy.typing as npt

_own = threading.local()


def scratch[T: np.generic](name: str, shape: tuple[int, ...], dtype: type[T]) -> npt.NDArray[T]:
    """Uninitialised memory of this thread; the next call with the same name takes it back.

    Unlike fresh memory it is in the cache still, and needs no pages from the system.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    kept: npt.NDArray[np.uint8] | None = getattr(_own, name, None)
    if kept is None or kept.size < size:
        kept = zeroed((size,), np.uint8)
        setattr(_own, name, kept)
    return kept[:size].view(dtype).reshape(shape)


def zeroed[T: np.generic](shape: tuple[int, ...], dtype: type[T] | np.dtype[T]) -> npt.NDArray[T]:
    """Zeros in pages of their own, which JAX takes over as they are: large ones where there are.

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
