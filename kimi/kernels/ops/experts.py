"""Routed experts: w2 . SiTU(w1 z, w3 z) over a slice of the expert width, weighted and summed.

A quantised matrix [K, N] comes as `Coded`: panels of 128 outputs, scales as exponent bytes. A
matmul runs over blocks of 256 inputs; scales are applied to the block's float32 partial sums:

  FP8: E4M3 values, one scale per block and output.
  MXFP4: 4-bit codes, one scale per 32 inputs and output. A left-hand row becomes eight rows of
    which row g keeps inputs 32 g .. 32 g + 31 of every block (`spread_groups`), so that one pass
    yields the eight groups' partials apart, and one register of scales fits them.

Run experts in two stages, `gate_up` of the next beside `down` of this one.

Numerics: z and SiTU's result are rounded to bfloat16 as matmul operands; weights, scales and
products are exact, sums float32. Results below 2^-126 may be flushed to zero.
Source: K3 report, latent MoE; compressed-tensors mxfp4. Oracle: reference.moe.Experts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import SUBLANES
from kimi.kernels.ops.lanes import BF16, F32, U32, dot, iota, pad_lanes

BLOCK = 256  # inputs per left-hand tile of the matrix unit, and per FP8 scale
CODES, VALUES = 8, 4  # MXFP4 codes and FP8 values in a word


class Coded(NamedTuple):
    """A quantised matrix [K, N] of one expert.

    Attributes:
      words: [P, K / 8, 128] uint32 for MXFP4, K / 4 for FP8: panels of 128 outputs, a word holding
        consecutive inputs, the first in the lowest bits. K is padded to whole registers (64 inputs
        of MXFP4, 32 of FP8), N to 128.
      scales: [8 S, 128] uint32. Byte b is 2^(b - 127), 0 is padding. Eight consecutive scales of a
        panel are a chunk; word block i holds chunks 4 i .. 4 i + 3, lowest byte first, where chunk
        (g, p) of scales 8 g .. 8 g + 7 of panel p has number g P + p.
    """

    words: Array
    scales: Array


def situ(gate: Array, up: Array, beta: float, linear_beta: float) -> Array:
    """`activation.situ` of float32, with products instead of divisions."""
    bounded = jnp.tanh(gate * (1.0 / beta)) * jax.nn.sigmoid(gate)
    return (beta * linear_beta) * bounded * jnp.tanh(up * (1.0 / linear_beta))


def spread_groups(x: Array) -> Array:
    """[T, K] float32 -> [8 T, K] float32: row 8 t + g keeps group g of every block of x[t]."""
    shape = (SUBLANES, x.shape[1])
    own = ((iota(shape, 1) >> 5) & (SUBLANES - 1)) == iota(shape, 0)
    rows = [jnp.where(own, x[t : t + 1], 0.0) for t in range(x.shape[0])]
    return jnp.concatenate(rows, 0)


def mxfp4_gate_up(spread_z: Array, expert: Coded, width: int, betas: tuple[float, float]) -> Array:
    """The hidden rows of an expert.

    Args:
      spread_z: [8 T, K] float32, `spread_groups` of the latent rows; once a layer.
      expert: [K, 2 F], gate and up columns.
      width: F.
      betas: SiTU's beta and linear beta.

    Returns: [T, F'] float32, padded with zeros to whole registers of the down-projection's codes
      (F' = F up to 64).
    """
    total = None
    for block, first in enumerate(range(0, spread_z.shape[1], BLOCK)):
        left = spread_z[:, first : first + BLOCK].astype(BF16)
        rows = slice(first // CODES, (first + left.shape[1]) // CODES)
        scale = _block_scales(expert, block)
        part = dot(left, _fp4(_wide(expert, rows)))
        part = part * jnp.concatenate([scale] * (left.shape[0] // SUBLANES), 0)
        total = part if total is None else total + part
    assert total is not None
    return _hidden(fold_groups(total), width, SUBLANES * CODES, betas)


def mxfp4_down(hidden: Array, expert: Coded, weights: Sequence[Array | float]) -> Array:
    """The weighted output of an expert over a slice of its width.

    Args:
      hidden: [T, F'] float32, from `mxfp4_gate_up`.
      expert: [F', N].
      weights: per row its routing weight, a scalar or [1, 1].

    Returns: [8 T, N] float32, groups apart: sum these over all experts of the layer, then
      `fold_groups` once.
    """
    tokens, blocks = hidden.shape[0], _blocks(hidden.shape[1])
    left = [_own_groups(hidden, first, size) for first, size in blocks]
    parts = dot(jnp.concatenate(left, 0), _fp4(_wide(expert)))
    out: list[Array] = []
    for block in range(len(blocks)):
        scale, base = _block_scales(expert, block), block * tokens * SUBLANES
        terms = [
            parts[base + SUBLANES * t : base + SUBLANES * (t + 1)] * scale * weights[t]
            for t in range(tokens)
        ]
        out = terms if not out else [a + b for a, b in zip(out, terms, strict=True)]
    return jnp.concatenate(out, 0)


def fold_groups(parts: Array) -> Array:
    """[8 T, N] -> [T, N]: adds up the eight groups of every row."""
    rows = [
        jnp.sum(parts[i : i + SUBLANES], 0, keepdims=True)
        for i in range(0, parts.shape[0], SUBLANES)
    ]
    return jnp.concatenate(rows, 0)


def fp8_gate_up(z: Array, expert: Coded, width: int, betas: tuple[float, float]) -> Array:
    """As `mxfp4_gate_up` for z [R, K] float32 or bfloat16 -> [R, F'] float32, F' = F up to 32."""
    total, left = None, z.astype(BF16)
    for block, first in enumerate(range(0, z.shape[1], BLOCK)):
        here = left[:, first : first + BLOCK]
        rows = slice(first // VALUES, (first + here.shape[1]) // VALUES)
        part = dot(here, _fp8(_wide(expert, rows))) * _scale_row(expert, block)
        total = part if total is None else total + part
    assert total is not None
    return _hidden(total, width, SUBLANES * VALUES, betas)


def fp8_down(hidden: Array, expert: Coded, weights: Array | float) -> Array:
    """The weighted output of an expert over a slice of its width.

    Args:
      hidden: [R, F'] float32, from `fp8_gate_up`, R a multiple of 8.
      expert: [F', N].
      weights: the rows' routing weights, [R, 1] float32, 0 where it was not chosen.

    Returns: [R, N] float32.
    """
    (rows, size), lane = hidden.shape, iota(hidden.shape, 1)
    starts = [first for first, _ in _blocks(size)]
    left = [
        jnp.where((lane >= first) & (lane < first + BLOCK) & (lane < size), hidden, 0.0)
        for first in starts
    ]
    parts = dot(jnp.concatenate(left, 0).astype(BF16), _fp8(_wide(expert)))
    out = None
    for block in range(len(starts)):
        base = block * rows
        term = parts[base : base + rows] * _scale_row(expert, block) * weights
        out = term if out is None else out + term
    assert out is not None
    return out


def _blocks(size: int) -> list[tuple[int, int]]:
    """Start and length of the blocks of a slice."""
    return [(start, min(BLOCK, size - start)) for start in range(0, size, BLOCK)]


def _wide(expert: Coded, rows: slice = slice(None)) -> Array:
    """Rows of all panels, side by side: whole registers, so this moves nothing."""
    panels = [expert.words[p] for p in range(expert.words.shape[0])]
    return jnp.concatenate([panel[rows] for panel in panels], 1)


def _block_scales(expert: Coded, block: int) -> Array:
    """The eight scales of every output over a block, [8, N] float32."""
    return jnp.concatenate([_chunk(expert, block, p) for p in range(expert.words.shape[0])], 1)


def _fp4(words: Array) -> Array:
    """[K / 8, N] uint32 -> [K, N] E4M3, which holds every 4-bit code exactly."""
    return pltpu.bitcast(words, jnp.float4_e2m1fn).astype(jnp.float8_e4m3fn)


def _fp8(words: Array) -> Array:
    """[K / 4, N] uint32 -> [K, N] E4M3."""
    return pltpu.bitcast(words, jnp.float8_e4m3fn)


def _chunk(expert: Coded, group: int, panel: int) -> Array:
    """Scales 8 group .. 8 group + 7 of a panel, [8, 128] float32."""
    block, byte = divmod(group * expert.words.shape[0] + panel, 4)
    return _power(expert.scales[SUBLANES * block : SUBLANES * (block + 1)], byte)


def _scale_row(expert: Coded, index: int) -> Array:
    """One scale of every output, [1, N] float32."""
    group, row = divmod(index, SUBLANES)
    chunks = [_chunk(expert, group, p) for p in range(expert.words.shape[0])]
    return jnp.concatenate([chunk[row : row + 1] for chunk in chunks], 1)


def _power(words: Array, byte: int) -> Array:
    """2^(b - 127) of one byte of every word: the byte is the exponent field of a float32."""
    return pltpu.bitcast(((words >> (8 * byte)) & U32(0xFF)) << 23, F32)


def _own_groups(hidden: Array, first: int, size: int) -> Array:
    """[T, L] float32 -> [8 T, L] bfloat16: row 8 t + g keeps the g-th 32 lanes from `first` on."""
    shape = (SUBLANES, hidden.shape[1])
    lane = iota(shape, 1) - first
    own = (lane >= 0) & (lane < size) & ((lane >> 5) == iota(shape, 0))
    rows = [jnp.where(own, hidden[t : t + 1], 0.0) for t in range(hidden.shape[0])]
    return jnp.concatenate(rows, 0).astype(BF16)


def _hidden(products: Array, width: int, multiple: int, betas: tuple[float, float]) -> Array:
    """[R, N] of gate, up, padding -> SiTU, [R, F'], F' = F up to `multiple`."""
    gate, up = (
        pad_lanes(products[:, side * width : (side + 1) * width], multiple, 0.0) for side in (0, 1)
    )
    return situ(gate, up, *betas)
