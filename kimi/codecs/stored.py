"""MXFP4 to FP8 with the inputs of a matrix side by side, as files hold weights."""

import numpy as np
import numpy.typing as npt

from kimi.codecs.arithmetic import BITS_16, K_OF_0, assemble, definition, halves, spread
from kimi.codecs.mxfp4 import GROUP
from kimi.codecs.native import U8_LINE, U8_OUT, U64_LINE, U64_OUT, bytes_of, compiled, inlined

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]

_EIGHTS = bytes_of(8)
_CHUNK = 256  # groups: 4 KiB in, 8 KiB out, and as much beside them, in the first cache


def encode(packed: U8, offsets: npt.NDArray[np.int8]) -> tuple[U8, npt.NDArray[np.bool_]]:
    """Re-encodes N groups whose exponents e all lie from -5 to 6.

    Args:
      packed: [N, 16] uint8.
      offsets: [N] int8, the exponents e.
    Returns: FP8 bytes [N, 32]; and [N], true where reading the group back did not give what went
      in.
    """
    values = np.empty((len(packed), GROUP), np.uint8)
    wrong = np.empty(len(packed), np.uint8)
    words = np.ascontiguousarray(packed).reshape(-1).view(np.uint64)
    _encode(words, offsets.view(np.uint8), values.reshape(-1).view(np.uint64), wrong)
    return values, wrong.view(np.bool_)


@inlined
def _write(words: U64, k: U64, values: U64) -> None:
    for i in range(len(words)):
        word, exponents = words[i], k[i]
        # Of either half of the word: codes 0 to 3, and 4 to 7.
        first = assemble(spread(word), exponents)
        second = assemble(spread(word >> BITS_16), exponents)
        values[2 * i], values[2 * i + 1] = halves(first, second)


@inlined
def _read(words: U64, k: U64, values: U64, wrong: U8) -> None:
    for group in range(len(wrong)):
        differs = np.uint64(0)
        for i in range(2 * group, 2 * group + 2):
            word, exponents = words[i], k[i]
            first = definition(spread(word), exponents)
            second = definition(spread(word >> BITS_16), exponents)
            lower, upper = halves(first, second)
            differs |= (values[2 * i] ^ lower) | (values[2 * i + 1] ^ upper)
        wrong[group] = differs != np.uint64(0)


@compiled(U64_LINE, U8_LINE, U64_OUT, U8_OUT)
def _encode(words: U64, offsets: U8, values: U64, wrong: U8) -> None:
    """[2 N], [N] -> [4 N] and [N]."""
    k = np.empty(2 * _CHUNK, np.uint64)
    for first in range(0, len(offsets), _CHUNK):
        last = min(first + _CHUNK, len(offsets))
        own, out = words[2 * first : 2 * last], values[4 * first : 4 * last]
        for group in range(last - first):
            exponent = np.uint64(np.uint8(offsets[first + group] + K_OF_0))
            k[2 * group] = k[2 * group + 1] = exponent * _EIGHTS
        _write(own, k, out)
        _read(own, k, out, wrong[first:last])
