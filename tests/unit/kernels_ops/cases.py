"""Every function of kimi.kernels.ops at the sizes of one of 32 ranks, as a kernel of its own.

`python -m tests.unit.kernels_ops.cases` compiles them all for TPU v7 and prints one JSON object:
name to "" or the error. It is a program because libtpu must be told what to expect before jax is
imported.
"""

import os

if __name__ == "__main__":
    os.environ.update(
        JAX_PLATFORMS="cpu",
        TPU_SKIP_MDS_QUERY="1",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        TPU_ACCELERATOR_TYPE="tpu7x-32",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_MIN_LOG_LEVEL="3",
    )

import json
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.ops import attn_res, experts, head, kda, mla, reduce, router

F32, BF16, U32, I32 = jnp.float32, jnp.bfloat16, jnp.uint32, jnp.int32
EPS, BETAS = 1e-5, (4.0, 25.0)
D, LATENT, E, K = 7168, 3584, 896, 16
HEADS, WIDTH = 3, 128
RANK, CACHE = 512, 576


@dataclass(frozen=True)
class Case:
    """A function of arrays (in VMEM) and scalars (in SMEM, last), and what it is called with."""

    function: Callable
    arrays: tuple
    scalars: int = 0


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, F32)


def u32(*shape):
    return jax.ShapeDtypeStruct(shape, U32)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, I32)


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, BF16)


def split(x):
    """An array as the list of its first axis."""
    return [x[i] for i in range(x.shape[0])]


ROW = f32(8, D)  # a row tile of the stream
FOLDED = f32(1, D // 128, 128)
STAT, FOLDED_STAT = f32(8, 128), f32(1, 1, 128)
VECTOR = f32(D // 128, 128)
HEAD_ROW, STATE = f32(8, HEADS * WIDTH), f32(HEADS, WIDTH, WIDTH)
ROWS = (HEAD_ROW,) * 4 + (f32(8, HEADS),)
CONV, TAPS = f32(8, 3 * HEADS * WIDTH), f32(4, 3 * HEADS, 128)
HEAD_VECTOR = f32(HEADS, 128)
SCORES = f32(8, E)


def freeze(residuals, inverse, weight, count):
    return attn_res.freeze(split(residuals), split(inverse), weight, count)


def mixed(combined, maximum, denominator, square, prefix, score_weight, weight):
    frozen = attn_res.Frozen(combined, maximum, denominator, square)
    return attn_res.attn_res_norm(frozen, prefix, score_weight, weight, EPS)


def attend(q, tiles, maximum, total, values, lengths, first, length):
    """Four tiles of 512 positions."""
    live = [mla.valid_words(t, first + 512 * i, length) for i, t in enumerate(split(tiles))]
    scores = [mla.scores(q, t, 192**-0.5) for t in live]
    return mla.accumulate(mla.Partial(maximum, total, values), scores, live, first, lengths)


def attention(rows):
    m = f32(rows, 128)
    shapes = (bf16(rows, CACHE), u32(4, CACHE // 2, 512), m, m, f32(rows, RANK), i32(rows, 128))
    return Case(attend, shapes, 2)


def coded(inputs, outputs, per_word, group):
    """Shapes of one `experts.Coded`."""
    panels = -(-outputs // 128)
    rows = -(-inputs // (8 * per_word)) * 8
    chunks = -(-inputs // (8 * group)) * panels
    return experts.Coded(u32(panels, rows, 128), u32(-(-chunks // 4) * 8, 128))


def gate_up(function, left, width, *form):
    def run(z, *x):
        return function(z, experts.Coded(*x), width, BETAS)

    return Case(run, (left, *coded(LATENT, 2 * width, *form)))


def mxfp4_down(width, rows):
    def run(hidden, weights, *x):
        return experts.mxfp4_down(hidden, experts.Coded(*x), split(weights[:rows, :1]))

    padded = -(-width // 64) * 64
    return Case(run, (f32(rows, padded), f32(8, 128), *coded(width, LATENT, 8, 32)))


def fp8_down(width):
    def run(hidden, weights, *x):
        return experts.fp8_down(hidden, experts.Coded(*x), weights[:, :1])

    return Case(run, (f32(8, width), f32(8, 128), *coded(width, LATENT, 4, 256)))


def list_row(biased, scores):
    owned = (jax.lax.broadcasted_iota(I32, (1, biased.shape[1]), 1) & 1) == 0
    return router.list_row(biased[:1], scores[:1], owned, K, 1.0, 128)


def route_union(biased, scores, group, rows):
    owned = (jax.lax.broadcasted_iota(I32, biased.shape, 1) & 1) == group
    return router.union(router.route_rows(biased, scores, K, 1.0), rows, owned, 128)


CASES = {
    "attn_res.freeze rows": Case(freeze, (f32(8, 8, D), f32(8, 8, 128), VECTOR), 1),
    "attn_res.freeze folded": Case(freeze, (f32(8, *FOLDED.shape), f32(8, 1, 1, 128), VECTOR), 1),
    "attn_res.attn_res_norm rows": Case(mixed, (ROW, STAT, STAT, STAT, ROW, VECTOR, VECTOR)),
    "attn_res.attn_res_norm folded": Case(
        mixed, (FOLDED, *(FOLDED_STAT,) * 3, FOLDED, VECTOR, VECTOR)
    ),
    "attn_res.rms_norm": Case(
        lambda x, w: attn_res.rms_norm(x, w, EPS), (f32(8, 1536), f32(12, 128))
    ),
    "kda.short_conv": Case(kda.short_conv, (CONV, CONV, TAPS)),
    "kda.advance_conv_state": Case(kda.advance_conv_state, (CONV, CONV), 1),
    "kda.short_conv_batch": Case(kda.short_conv_batch, (f32(3, *CONV.shape), CONV, TAPS)),
    "kda.log_decay": Case(
        lambda x, b, r: kda.log_decay(x, b, r, -5.0), (HEAD_ROW, HEAD_VECTOR, HEAD_VECTOR)
    ),
    "kda.gated_norm": Case(
        lambda o, w, z: kda.gated_norm(o, w, z, EPS), (HEAD_ROW, f32(1, WIDTH), HEAD_ROW)
    ),
    "kda.step 1": Case(lambda *x: kda.step(kda.Rows(*x[:5]), x[5]), (*ROWS, f32(1, *STATE.shape))),
    "kda.step 8": Case(lambda *x: kda.step(kda.Rows(*x[:5]), x[5]), (*ROWS, f32(8, *STATE.shape))),
    "kda.chunk": Case(lambda *x: kda.chunk(kda.Rows(*x[:5]), x[5]), (*ROWS, STATE)),
    "kda.replay": Case(
        lambda m, u, k, g, n: kda.replay(m, kda.Trace(u, k, g), n), (STATE, *(HEAD_ROW,) * 3), 1
    ),
    "mla.accumulate 1 row": attention(16),
    "mla.accumulate 8 rows": attention(32),
    "mla.finish": Case(
        lambda *x: mla.finish(mla.Partial(*x)), (f32(32, 128), f32(32, 128), f32(32, RANK))
    ),
    "mla.insert_rows 1": Case(mla.insert_rows, (u32(CACHE // 2, 128), f32(1, CACHE)), 1),
    "mla.insert_rows 8": Case(mla.insert_rows, (u32(CACHE // 2, 128), f32(8, CACHE)), 1),
    "router.list_row": Case(list_row, (SCORES, SCORES)),
    "router.union": Case(route_union, (SCORES, SCORES), 2),
    "experts.spread_groups": Case(experts.spread_groups, (f32(8, LATENT),)),
    "experts.fold_groups": Case(experts.fold_groups, (f32(64, LATENT),)),
    "experts.mxfp4_gate_up": gate_up(experts.mxfp4_gate_up, bf16(8, LATENT), 192, 8, 32),
    "experts.mxfp4_gate_up 2 rows": gate_up(experts.mxfp4_gate_up, bf16(16, LATENT), 192, 8, 32),
    "experts.mxfp4_gate_up 96": gate_up(experts.mxfp4_gate_up, bf16(8, LATENT), 96, 8, 32),
    "experts.mxfp4_down": mxfp4_down(192, 1),
    "experts.mxfp4_down 2 rows": mxfp4_down(192, 2),
    "experts.mxfp4_down 96": mxfp4_down(96, 1),
    "experts.fp8_gate_up": gate_up(experts.fp8_gate_up, f32(8, LATENT), 192, 4, 256),
    "experts.fp8_down": fp8_down(192),
    "reduce.pack_bf16": Case(reduce.pack_bf16, (f32(8, 224),)),
    "reduce.sum_bf16": Case(lambda w: reduce.sum_bf16(w, 224), (u32(32, 8, 128),)),
    "reduce.sum_values": Case(reduce.sum_values, (u32(32, 8, 128),)),
    "reduce.join_bf16": Case(lambda w: reduce.join_bf16(w, 224), (u32(32, 8, 128),)),
    "reduce.join_values": Case(lambda w: reduce.join_values(w, 112), (u32(32, 8, 128),)),
    "head.update": Case(
        lambda v, i, x, *at: head.update(head.Best(v, i), x, *at),
        (STAT, i32(8, 128), f32(8, 1024)),
        2,
    ),
    "head.pick": Case(head.pick, (STAT, i32(8, 128))),
}


def kernel(case, interpret=False):
    """The case as one Pallas call: operands loaded, the function, results stored."""
    scalars = [i32(1)] * case.scalars
    results = jax.tree.leaves(jax.eval_shape(case.function, *case.arrays, *[i32()] * case.scalars))

    def body(*refs):
        inputs, outputs = refs[: -len(results)], refs[-len(results) :]
        arrays = [ref[...] for ref in inputs[: len(case.arrays)]]
        numbers = [ref[0] for ref in inputs[len(case.arrays) :]]
        for ref, value in zip(
            outputs, jax.tree.leaves(case.function(*arrays, *numbers)), strict=True
        ):
            ref[...] = value

    vmem, smem = (pl.BlockSpec(memory_space=s) for s in (pltpu.VMEM, pltpu.SMEM))
    return pl.pallas_call(
        body,
        out_shape=results,
        in_specs=[vmem] * len(case.arrays) + [smem] * len(scalars),
        out_specs=[vmem] * len(results),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=60 << 20),
        interpret=interpret,
    )


def compile_all():
    """Compiles every case for one core of TPU v7: name to "" or the error."""
    topology = topologies.get_topology_desc(topology_name="tpu7x:2x2x1", platform="tpu")
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    found = {}
    for name, case in CASES.items():
        shapes = [
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device)
            for x in (*case.arrays, *[i32(1)] * case.scalars)
        ]
        try:
            jax.jit(kernel(case), out_shardings=device).lower(*shapes).compile()
            found[name] = ""
        except Exception as error:  # reported, test by test
            found[name] = f"{type(error).__name__}: {error}"[:2000]
    return found


if __name__ == "__main__":
    print(json.dumps(compile_all()))
