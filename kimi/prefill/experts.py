"""The routed experts of a layer on many tokens: one Pallas kernel over tiles of sorted pairs.

An expert's block is copied once, a tile ahead. Its weights are decoded in every tile, which hides
beside the matrix unit; no other copy of them is ever made. Latents of all tokens and the sum of
outputs stay in VMEM: rows are gathered and added there.

Numerics: rows and SiTU's result are bfloat16 operands, weights times scales are exact in bfloat16
(at most four bits times a power of two), sums float32, as in `kernels.ops.experts`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES, TPU_V7
from kimi.kernels.experts import SCALES_PER_CHUNK, CodedMatrix, ExpertBlock, ExpertFormat
from kimi.kernels.ops.experts import situ
from kimi.kernels.refs import Ref
from kimi.prefill.pairs import BF16, F32, U32, pack, padded
from kimi.prefill.routing import TILE_ROWS, Routes

# A piece of the weights: inputs of gate and up, panels of down. One push of the matrix unit.
_INPUTS, _PANELS = 256, 2
_TOGETHER = 4  # rows that are gathered or added together


def latent_words(latent: Array, width: int) -> Array:
    """Latents [T, K] as the kernel reads them: words of columns i and i + width / 2."""
    return pack(*jnp.split(padded(latent, width), 2, 1))


def _weights(form: CodedMatrix, block: Ref, inputs: range, panels: range) -> Array:
    """Some panels of a part of a coded matrix, decoded: bfloat16 [inputs, panels * 128], exact."""
    kind = jnp.float4_e2m1fn if form.format is ExpertFormat.MXFP4 else jnp.float8_e4m3fn
    decoded = []
    for panel in panels:
        code = form.row + panel * form.panel_rows
        words = block[0, code + inputs.start // form.format.per_word :
                      code + inputs.stop // form.format.per_word, :]  # fmt: skip
        values = pltpu.bitcast(words, kind).astype(BF16)
        parts = []
        for first in range(inputs.start, inputs.stop, form.format.group):
            stop = min(first + form.format.group, inputs.stop)
            group, row = divmod(first // form.format.group, SCALES_PER_CHUNK)
            at, byte = form.chunk(group, panel)
            bits = (block[0, at : at + SCALES_PER_CHUNK, :] >> (8 * byte)) & U32(0xFF)
            scales = pltpu.bitcast(bits << 23, F32).astype(BF16)
            part = values[first - inputs.start : stop - inputs.start]
            parts.append(part * scales[row : row + 1])
        decoded.append(jnp.concatenate(parts, 0))
    return jnp.concatenate(decoded, 1)


def _expert(
    block: ExpertBlock, words: Ref, left: Array, betas: tuple[float, float], out: Ref
) -> None:
    """An expert's output for bfloat16 [TILE_ROWS, padded latent]: float32 [TILE_ROWS, outputs].

    Weights are decoded piece by piece, each beside the product with the one before.
    """
    up, down = block.gate_up, block.down
    both = jnp.zeros((left.shape[0], up.panels * LANES), F32)
    for first in range(0, up.padded_inputs, _INPUTS):
        inputs = range(first, min(first + _INPUTS, up.padded_inputs))
        weights = _weights(up, words, inputs, range(up.panels))
        both += jnp.dot(left[:, inputs.start : inputs.stop], weights, preferred_element_type=F32)
    gate, lift = both[:, : block.width], both[:, block.width : 2 * block.width]
    hidden = situ(gate, lift, betas[0], betas[1])
    missing = down.padded_inputs - block.width
    if missing:
        hidden = jnp.concatenate([hidden, jnp.zeros((hidden.shape[0], missing), F32)], 1)
    hidden = hidden.astype(BF16)
    for first in range(0, down.panels, _PANELS):
        panels = range(first, min(first + _PANELS, down.panels))
        weights = _weights(down, words, range(down.padded_inputs), panels)
        lanes = slice(panels.start * LANES, panels.stop * LANES)
        out[:, lanes] = jnp.dot(hidden, weights, preferred_element_type=F32)


def _kernel(block: ExpertBlock, betas: tuple[float, float]) -> Callable[..., None]:
    def body(
        tokens: Ref, weights: Ref, expert: Ref, first: Ref, rows: Ref, base: Ref,
        latents: Ref, words: Ref, out: Ref,
        all_latents: Ref, total: Ref, gathered: Ref, results: Ref,
    ) -> None:  # fmt: skip
        del expert, base  # of the copies
        tile = pl.program_id(0)

        @pl.when(tile == 0)
        def _() -> None:
            pltpu.sync_copy(latents, all_latents)
            total[...] = jnp.zeros(total.shape, F32)
            gathered[...] = jnp.zeros(gathered.shape, U32)

        start, count, spare = first[tile], rows[tile], all_latents.shape[0]
        rounds = (count + _TOGETHER - 1) // _TOGETHER

        def collect(i: Array, _: None) -> None:
            for j in range(_TOGETHER):  # those behind the last one are the last one again
                row = i * _TOGETHER + j
                token = tokens[start + jnp.minimum(row, count - 1)]
                gathered[pl.ds(row, 1), :] = all_latents[pl.ds(token, 1), :]

        lax.fori_loop(0, rounds, collect, None)
        x = gathered[...]
        halves = [pltpu.bitcast(x << 16, F32), pltpu.bitcast(x & U32(0xFFFF0000), F32)]
        _expert(block, words, jnp.concatenate(halves, 1).astype(BF16), betas, results)

        def add(i: Array, _: None) -> None:
            # An expert's tokens are all different: their sums are read before one is written.
            at = [i * _TOGETHER + j for j in range(_TOGETHER)]
            pairs = [start + jnp.minimum(row, count - 1) for row in at]
            own = [
                jnp.where(row < count, tokens[p], spare) for row, p in zip(at, pairs, strict=True)
            ]
            sums = [
                total[pl.ds(token, 1), :] + results[pl.ds(row, 1), :] * weights[pair]
                for token, row, pair in zip(own, at, pairs, strict=True)
            ]
            for token, value in zip(own, sums, strict=True):
                total[pl.ds(token, 1), :] = value

        lax.fori_loop(0, rounds, add, None)

        @pl.when(tile == pl.num_programs(0) - 1)
        def _() -> None:
            pltpu.sync_copy(total.at[:spare], out)

    return body


def run_experts(
    block: ExpertBlock, betas: tuple[float, float], routes: Routes, latent: Array, experts: Array,
    base: Array, interpret: bool,
) -> Array:  # fmt: skip
    """The weighted sum of the rank's experts for every token.

    Args:
      block: form of an expert.
      betas: of SiTU.
      routes: which expert on which tokens.
      latent: bfloat16 [T, latent].
      experts: uint32 [blocks, rows, 128].
      base: [] int32, the layer's first block.
      interpret: True without a TPU.

    Returns: float32 [T, latent], partial over width and groups; zero for tokens without a pair.
    """
    words = latent_words(latent, block.gate_up.padded_inputs)
    tokens, outputs = latent.shape[0], block.down.panels * LANES
    anywhere = pl.BlockSpec(memory_space=pl.ANY)

    def place(tile: Array, *scalars: Ref) -> tuple[Array, int, int]:
        return scalars[-1][0] + scalars[2][tile], 0, 0

    scratch = [
        pltpu.VMEM(words.shape, U32),
        pltpu.VMEM((tokens + SUBLANES, outputs), F32),  # with a spare row
        pltpu.VMEM((TILE_ROWS, words.shape[1]), U32),
        pltpu.VMEM((TILE_ROWS, outputs), F32),
    ]
    call = pl.pallas_call(
        _kernel(block, betas),
        name="prefill_experts",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(routes),  # the first block in place of the number of tiles
            grid=(jnp.maximum(routes.tiles, 1),),
            in_specs=[anywhere, pl.BlockSpec((1, block.rows, LANES), place)],
            out_specs=anywhere,
            scratch_shapes=scratch,
        ),
        out_shape=jax.ShapeDtypeStruct((tokens, outputs), F32),
        interpret=interpret,
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=TPU_V7.vmem_bytes),
    )
    scalars = (getattr(routes, name) for name in routes._fields if name != "tiles")
    return call(*scalars, base.reshape(1), words, experts)[:, : block.latent]
