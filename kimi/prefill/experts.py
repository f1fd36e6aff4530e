"""The routed experts of a layer on many tokens: one Pallas kernel over tiles of sorted pairs.

An expert's block is copied once, a tile ahead, and turned into bfloat16 matrices in VMEM once,
whatever its number of tiles; no other copy of it is ever made. Latents of all tokens and the sum of
outputs stay in VMEM: rows are gathered and added there, one by one.

Numerics: rows and SiTU's result are bfloat16 operands, weights times scales are exact in bfloat16,
sums float32, as in `kernels.ops.experts`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, TPU_V7
from kimi.kernels.experts import SCALES_PER_CHUNK, CodedMatrix, ExpertBlock, ExpertFormat
from kimi.kernels.ops.experts import situ
from kimi.kernels.refs import Ref
from kimi.prefill.pairs import BF16, F32, U32, pack, padded
from kimi.prefill.routing import TILE_ROWS, Routes


def latent_words(latent: Array, width: int) -> Array:
    """Latents [T, K] as the kernel reads them: words of columns i and i + width / 2."""
    return pack(*jnp.split(padded(latent, width), 2, 1))


def _weights(form: CodedMatrix, block: Ref, target: Ref) -> None:
    """Writes a coded matrix as bfloat16 [padded K, panels * 128]."""
    step = form.format.group * SCALES_PER_CHUNK
    kind = jnp.float4_e2m1fn if form.format is ExpertFormat.MXFP4 else jnp.float8_e4m3fn
    for panel in range(form.panels):
        lanes = slice(panel * LANES, (panel + 1) * LANES)
        for group in range(form.scale_groups):
            start = group * step
            stop = min(start + step, form.padded_inputs)
            code = form.row + panel * form.panel_rows + start // form.format.per_word
            words = block[0, code : code + (stop - start) // form.format.per_word, :]
            at, byte = form.chunk(group, panel)
            bits = (block[0, at : at + SCALES_PER_CHUNK, :] >> (8 * byte)) & U32(0xFF)
            scales = pltpu.bitcast(bits << 23, F32).astype(BF16)
            values = pltpu.bitcast(words, kind).astype(BF16)
            for i, first in enumerate(range(0, stop - start, form.format.group)):
                part = values[first : first + form.format.group]
                row = start + first
                target[row : row + part.shape[0], lanes] = part * scales[i : i + 1]


def _kernel(block: ExpertBlock, betas: tuple[float, float]) -> Callable[..., None]:
    up, down = block.gate_up, block.down

    def body(
        tokens: Ref, weights: Ref, expert: Ref, first: Ref, rows: Ref, fresh: Ref, base: Ref,
        latents: Ref, words: Ref, out: Ref,
        all_latents: Ref, total: Ref, gathered: Ref, results: Ref, gate_up: Ref, down_w: Ref,
    ) -> None:  # fmt: skip
        del expert, base  # of the copies
        tile = pl.program_id(0)

        @pl.when(tile == 0)
        def _() -> None:
            pltpu.sync_copy(latents, all_latents)
            total[...] = jnp.zeros(total.shape, F32)
            gathered[...] = jnp.zeros(gathered.shape, U32)

        @pl.when(fresh[tile] > 0)
        def _() -> None:
            _weights(up, words, gate_up)
            _weights(down, words, down_w)

        @pl.when(rows[tile] > 0)
        def _() -> None:
            start = first[tile]

            def collect(i: Array, _: None) -> None:
                gathered[pl.ds(i, 1), :] = all_latents[pl.ds(tokens[start + i], 1), :]

            lax.fori_loop(0, rows[tile], collect, None)
            x = gathered[...]
            halves = [pltpu.bitcast(x << 16, F32), pltpu.bitcast(x & U32(0xFFFF0000), F32)]
            left = jnp.concatenate(halves, 1).astype(BF16)
            both = jnp.dot(left, gate_up[...], preferred_element_type=F32)
            hidden = situ(both[:, : block.width], both[:, block.width : 2 * block.width], betas[0],
                          betas[1])  # fmt: skip
            missing = down.padded_inputs - block.width
            if missing:
                zeros = jnp.zeros((hidden.shape[0], missing), F32)
                hidden = jnp.concatenate([hidden, zeros], 1)
            results[...] = jnp.dot(hidden.astype(BF16), down_w[...], preferred_element_type=F32)

            def add(i: Array, _: None) -> None:
                token = tokens[start + i]
                row = results[pl.ds(i, 1), :] * weights[start + i]
                total[pl.ds(token, 1), :] = total[pl.ds(token, 1), :] + row

            lax.fori_loop(0, rows[tile], add, None)

        @pl.when(tile == pl.num_programs(0) - 1)
        def _() -> None:
            pltpu.sync_copy(total, out)

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
        pltpu.VMEM((tokens, outputs), F32),
        pltpu.VMEM((TILE_ROWS, words.shape[1]), U32),
        pltpu.VMEM((TILE_ROWS, outputs), F32),
        *(
            pltpu.VMEM((form.padded_inputs, form.panels * LANES), BF16)
            for form in (block.gate_up, block.down)
        ),
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
