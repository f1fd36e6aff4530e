"""Throughput of the weight codecs.

Full-size experts (w1 and w3 of [3072, 3584], w2 of [3584, 3072]) with random codes. A rate counts
the bytes that go in, codes and scales, per second of the fastest of several passes; the memory copy
next to it moves the same bytes in the same process. Extra memory is the growth of the resident set
while one stack of weights is re-encoded, per byte that goes in; the result itself is 1.9 of it.

How the re-encoding came to be what it is, on two shared cores where the copy ran at 4 to 7 GB/s.
Rates of assembling the bytes alone, without reading them back:

    numpy, one table look-up per packed byte, indices of 64 bits    0.6 GB/s a core
    numpy, one look-up per two bytes, a table per exponent          0.8 GB/s a core
    numpy, arithmetic on 64-bit words, about 20 passes              0.5 GB/s a core (estimated)
    XLA, arithmetic on 16-bit lanes, one pass                       3 to 8 GB/s
    machine code (numba), 64-bit words, one pass                    4 GB/s a core

Read back, and with the memory of its result, XLA's came to 1.18 GB/s on two cores; the last, which
needs no memory beside it, to 1.65 on one. Loading transposes on the way, as is measured here
(`transposed`). The look-up per two bytes remains as the path for unusual weights (`lookup`).
"""

import resource
import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kimi.codecs import fp8, mxfp4, transposed
from kimi.errors import InputError

EXPERT_SHAPES = ((3072, 3584), (3072, 3584), (3584, 3072))
_PASSES = 15

Weight = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]


def random_weight(rng: np.random.Generator, shape: tuple[int, ...]) -> Weight:
    """A packed weight of `shape` [..., K] whose scales differ as those of trained weights do."""
    *lead, width = shape
    codes = rng.integers(0, 256, (*lead, width // 2), dtype=np.uint8)
    scales = rng.integers(115, 121, (*lead, width // mxfp4.GROUP), dtype=np.uint8)
    return codes, scales


def reencode(packed: npt.NDArray[np.uint8], scale: npt.NDArray[np.uint8]) -> None:
    """A weight [N, K] as FP8 in new panels, read back, as loading does it."""
    rows, width = len(packed), 2 * packed.shape[1]
    panels = -(-rows // transposed.PANEL)
    codes = np.empty((panels, width // 4, transposed.PANEL), np.uint32)
    bias = np.empty((panels, -(-width // fp8.BLOCK), transposed.PANEL), np.uint8)
    if not transposed.encode(packed, scale, fp8.BLOCK, 0, codes, bias):
        raise InputError("weight: expected scale bytes at most 11 apart, found others")


def _rate(work: Callable[[Weight], object], weights: list[Weight]) -> float:
    """GB/s of input, fastest of several passes over all weights."""
    size = sum(codes.nbytes + scales.nbytes for codes, scales in weights)
    seconds = []
    for _ in range(_PASSES + 1):  # the first pass compiles and touches the memory
        start = time.perf_counter()
        for weight in weights:
            work(weight)
        seconds.append(time.perf_counter() - start)
    return size / min(seconds[1:]) / 1e9


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _extra_memory(rng: np.random.Generator, experts: int) -> float:
    """Peak extra bytes of a re-encoding per byte of its input."""
    reencode(*random_weight(rng, (8, 256)))  # loads all libraries
    codes, scales = random_weight(rng, (experts * 4 * EXPERT_SHAPES[0][0], EXPERT_SHAPES[0][1]))
    before = _peak_bytes()
    reencode(codes, scales)
    return (_peak_bytes() - before) / (codes.nbytes + scales.nbytes)


def measure(experts: int) -> dict[str, float]:
    """Runs everything. Returns GB/s of input, and the extra memory per byte of input."""
    rng = np.random.default_rng(0)
    memory = _extra_memory(rng, experts)  # first, as the peak never falls
    weights = [random_weight(rng, shape) for _ in range(experts) for shape in EXPERT_SHAPES]
    target = np.empty(max(codes.size + scales.size for codes, scales in weights), np.uint8)

    def copy(weight: Weight) -> None:
        codes, scales = weight
        target[: codes.size] = codes.reshape(-1)
        target[codes.size : codes.size + scales.size] = scales.reshape(-1)

    return {
        "copy_gb_per_s": _rate(copy, weights),
        "mxfp4_to_fp8_gb_per_s": _rate(lambda w: reencode(*w), weights),
        "mxfp4_to_float32_gb_per_s": _rate(lambda w: mxfp4.decode(*w), weights[:3]),
        "extra_memory_per_input_byte": memory,
    }
