"""A streaming skeleton of the published decoder that this project is measured against.

It moves that decoder's bytes in that decoder's order, with its exchanges: experts are requested
during routing, the latent is awaited behind the shared expert, and the next layer is requested once
the experts are done, as their slots lie on the attention's buffers, before the reductions are
awaited. Arithmetic is a stand-in of the right shapes: results mean nothing. The authors measured
4.02 ms at one row and 8.46 to 8.57 ms at eight on hardware, whole steps with dispatch, the latter
with the draft (`calibration`). Layer 0, embedding, head and drafter are not in it.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding, PartitionSpec

from kimi.config import ModelConfig
from kimi.kernels.chip import LANES, SUBLANES, TPU_V7
from kimi.kernels.mesh import Mesh
from kimi.lab.predict.compile import Subject
from kimi.lab.predict.feed import fullest_groups, list_buffer
from kimi.lab.predict.launch import Kernel
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.peer import EXPERT_GROUPS, POSITIONS, RANKS, SLOTS, Peer, matrix_rows
from kimi.lab.predict.peer_kernel import (
    ATTENTION,
    AXIS,
    BF16,
    ENTRIES,
    EXCHANGES,
    F32,
    FP4,
    FP8,
    I32,
    LATE,
    LHS_ROWS,
    MESSAGE_ROWS,
    U32,
    Copy,
    Refs,
    Skeleton,
    join,
    norm,
    scales,
    situ,
    twice,
)
from kimi.lab.predict.simulate import partition_words
from kimi.lab.predict.topology import compile_mesh

_LIST_SHAPE = (SUBLANES, LANES)
_COUNT_ROW, _TOKEN_ROW = 1, 2  # of the list; row 0 has the ids
_TOKENS = 2  # that an expert computes at once, of several rows
_SCALED = 256  # inputs under one FP8 scale, or eight MXFP4 scales
ROWS, PLANES, PAIRS = (2, 4, 6), (8, 16, 24), (1,)  # offsets of peers
EIGHT, SIXTEEN, ALL = tuple(range(1, 8)), tuple(range(1, 16)), tuple(range(1, RANKS))


def _attention_out(s: Skeleton, name: str) -> None:
    """The two cores of a chip share rows of the projection; then sums over the others."""
    half = s.hidden // 2
    wide = s.r.wide
    s.exchange(1, PAIRS, 8 if s.one_row else 16, wide[0:SUBLANES, : 2 * LANES])
    inner = s.peer.matrices[name][0] // 2
    left = join([wide[:, :inner]] * 2).astype(BF16)
    with jax.named_scope("attention_out"):
        s.product(left, name, wide)
    mine = wide[0:SUBLANES, :half]
    if s.one_row:
        s.exchange(2, SIXTEEN, 14, mine, summed=True)
        s.exchange(3, PAIRS, 14, mine)
    else:
        s.exchange(2, ROWS, 28, mine, same=False, summed=True)
        s.exchange(3, PLANES, 56, mine, summed=True)
        s.exchange(4, PAIRS, 28, mine)
        s.exchange(5, ROWS, 56, mine)
    s.r.stream[...] += wide[0:SUBLANES, :]


def _kda(s: Skeleton) -> None:
    with jax.named_scope("kda_in"):
        s.product(s.r.normed, "decay", s.r.wide)
        s.product(s.r.normed, "kda_in", s.r.wide)
    s.delta()
    _attention_out(s, "kda_out")


def _mla(s: Skeleton, layer: Array) -> None:
    for name in LATE:
        s.load(name, layer).start()
    for slot in range(2):
        for copy in s.cache_loads(slot, slot):
            copy.start()
    wide, latent = s.r.wide, s.peer.config.q_lora_rank
    with jax.named_scope("mla_in"):
        s.product(s.r.normed, "q_a", wide)
        s.product(s.r.normed, "kv_a", wide, latent)
        left = norm(wide[:, :latent]).astype(BF16)
        outputs = s.peer.matrices["q_b"][1]
        s.product(left, "q_b", wide)
        s.product(left, "kv_b", wide, outputs)
    s.attend()
    with jax.named_scope("mla_gate"):
        s.product(s.r.normed, "gate", wide, 2 * s.peer.matrices["gate"][1])
    _attention_out(s, "mla_out")


def _expert_copy(s: Skeleton, layer: Array | int, index: Array) -> Copy:
    experts = s.peer.config.num_experts // EXPERT_GROUPS
    slot = index & (SLOTS - 1)
    expert = layer * experts + s.r.expert_list[0, index & (LANES - 1)]
    target = s.r.pool.at[pl.ds(pl.multiple_of(slot * s.peer.expert_rows, SUBLANES),
                               s.peer.expert_rows)]  # fmt: skip
    return pltpu.make_async_copy(s.r.experts.at[expert], target, s.r.expert_sems.at[slot])


def _gate_up(s: Skeleton, base: Array) -> Array:
    """FP8 gate and up of one expert, [8, 2 F]."""
    depth = s.width // 4
    panels = 2 * s.peer.expert_width // LANES
    pool, total = s.r.pool, None
    weights = join(
        [pltpu.bitcast(pool[pl.ds(base + p * depth, depth), :], FP8) for p in range(panels)]
    )
    row = base + depth * panels
    scale = join([pool[pl.ds(row + SUBLANES * p, SUBLANES), :] for p in range(panels)])
    scale = pltpu.bitcast(scale, F32)
    for i, k in enumerate(range(0, s.width, _SCALED)):
        part = jnp.dot(
            s.r.normed[:, k : k + _SCALED], weights[k : k + _SCALED], preferred_element_type=F32
        )
        at = i % SUBLANES
        part = part[0:SUBLANES] * scale[at : at + 1, :]
        total = part if total is None else total + part
    assert total is not None
    return total


def _down(s: Skeleton, base: Array, hidden: Array) -> Array:
    """MXFP4 down of one expert, [tokens, latent]: every token on eight rows, a scale group each."""
    tokens, inner = hidden.shape
    pool, panels = s.r.pool, s.width // LANES
    row = base + s.peer.expert_parts[0] + s.peer.expert_parts[1]
    group = lax.broadcasted_iota(I32, (SUBLANES, inner), 1) // 32 & (SUBLANES - 1)
    mask = group == lax.broadcasted_iota(I32, (SUBLANES, inner), 0)
    spread = [jnp.broadcast_to(hidden[t : t + 1], (SUBLANES, inner)) for t in range(tokens)]
    left = join([jnp.where(mask, x, 0.0) for x in spread], 0)
    left = (twice(left) if tokens == 1 else left).astype(BF16)
    depth = inner // 8
    words = [pool[pl.ds(row + p * depth, depth), :] for p in range(panels)]
    weights = join([pltpu.bitcast(w, FP4) for w in words]).astype(FP8)
    row = row + depth * panels
    sums = [jnp.zeros((SUBLANES, s.width), F32)] * tokens
    for i, k in enumerate(range(0, inner, _SCALED)):
        part = jnp.dot(left[:, k : k + _SCALED], weights[k : k + _SCALED],
                       preferred_element_type=F32)  # fmt: skip
        chunks = panels // 4
        at = row + i * chunks * SUBLANES
        packed = join([pool[pl.ds(at + SUBLANES * q, SUBLANES), :] for q in range(chunks)])
        scale = join([scales(packed, byte) for byte in range(4)])
        for t in range(tokens):
            sums[t] = sums[t] + part[t * SUBLANES : (t + 1) * SUBLANES] * scale
    return join([jnp.sum(x, 0, keepdims=True) for x in sums], 0)


def _run_expert(s: Skeleton, index: Array) -> None:
    base = pl.multiple_of((index & (SLOTS - 1)) * s.peer.expert_rows, SUBLANES)
    tokens, inner = (1 if s.one_row else _TOKENS), s.peer.expert_width
    both = _gate_up(s, base)[:tokens]
    out = _down(s, base, situ(both[:, :inner], both[:, inner:]))
    for t in range(tokens):
        if s.one_row:
            s.r.latent[...] += jnp.broadcast_to(out, (SUBLANES, s.width))
        else:
            chosen = s.r.expert_list[_TOKEN_ROW, (_TOKENS * index + t) & (LANES - 1)]
            row = pl.ds(chosen & (SUBLANES - 1), 1)
            s.r.latent[row, :] += out[t : t + 1]


def _experts(s: Skeleton, layer: Array) -> None:
    count = s.r.expert_list[_COUNT_ROW, 0]

    def run(index: Array, _: None) -> None:
        _expert_copy(s, 0, index).wait()
        _run_expert(s, index)

        @pl.when(index + SLOTS < count)
        def refill() -> None:
            _expert_copy(s, layer, index + SLOTS).start()

    with jax.named_scope("experts"):
        lax.fori_loop(0, count, run, None)


def _moe(s: Skeleton, layer: Array) -> None:
    wide, r = s.r.wide, s.r
    for name in ("latent_down", "shared_in", "shared_out"):
        s.load(name, layer).start()
    with jax.named_scope("router"):
        s.product(r.normed, "router", wide)
    s.exchange(6, PAIRS, 8 if s.one_row else 32, wide[0:SUBLANES, : SUBLANES * LANES])
    r.scores[0:SUBLANES, :LANES] = pltpu.bitcast(r.receive[1, 0:SUBLANES, :], F32)

    def send_latent() -> None:
        s.product(r.normed, "latent_down", wide)
        s.pack(join([wide[0:SUBLANES, :LANES]] * 2), 1, s.peer.rows)
        s.send(7, ALL, SUBLANES)

    def request_experts() -> None:
        lax.fori_loop(
            0,
            jnp.minimum(r.expert_list[_COUNT_ROW, 0], SLOTS),
            lambda i, _: _expert_copy(s, layer, i).start(),
            None,
        )

    s.choose(send_latent, request_experts)
    with jax.named_scope("shared"):
        s.product(r.normed, "shared_in", r.shared)
        inner = s.peer.matrices["shared_out"][0]
        s.product(situ(r.shared[:, :inner], r.shared[:, inner : 2 * inner]).astype(BF16),
                  "shared_out", r.shared)  # fmt: skip
        s.pack(r.shared[0:SUBLANES, :], SUBLANES, 28)
        s.send(8, EIGHT, 32, same=False)
    with jax.named_scope("exchange_7"):
        s.arrive(7, len(ALL), SUBLANES)
    for panel in range(s.width // LANES):
        words = r.receive[panel + 1, 0:SUBLANES, :]
        wide[0:SUBLANES, panel * LANES : (panel + 1) * LANES] = pltpu.bitcast(words, F32)
    r.normed[0:SUBLANES, : s.width] = wide[0:SUBLANES, : s.width].astype(BF16)
    r.latent[...] = jnp.zeros(r.latent.shape, F32)
    _experts(s, layer)
    s.load("latent_up", layer).start()
    s.start_attention(layer + 1)
    with jax.named_scope("exchange_8"):
        s.arrive(8, len(EIGHT), 32)
    _finish(s, layer)


def _finish(s: Skeleton, layer: Array) -> None:
    """Sums the latent over slices and groups, up-projection, and its gather."""
    r = s.r
    s.exchange(9, EIGHT, 14, r.latent[...], same=s.one_row, summed=True)
    s.exchange(10, PLANES, 14, r.latent[...], summed=True)
    if not s.one_row:
        s.exchange(11, EIGHT, 14, r.latent[...])
    with jax.named_scope("latent_up"):
        s.product(norm(twice(r.latent[...])).astype(BF16), "latent_up", r.wide)
    s.exchange(12, EIGHT, 8 if s.one_row else 32, r.wide[0:SUBLANES, : SUBLANES * LANES])
    if not s.one_row:
        s.exchange(13, ROWS, 56, r.wide[0:SUBLANES, : s.hidden // 4])
    r.stream[...] += r.wide[0:SUBLANES, :]


def _layer(s: Skeleton, layer: Array, _: None) -> None:
    if not s.one_row:
        s.exchange(0, ROWS, 56, s.r.stream[0:SUBLANES, : s.hidden // 4])
    s.mix()
    pl.when(s.r.mla[layer] == 0)(partial(_kda, s))
    pl.when(s.r.mla[layer] != 0)(partial(_mla, s, layer))
    s.mix()
    _moe(s, layer)


def _body(peer: Peer, layers: int, *refs: object) -> None:
    r = Refs(*refs)
    s = Skeleton(peer, r)
    barrier = pltpu.get_barrier_semaphore()
    for offset in ALL:
        pl.semaphore_signal(barrier, 1, device_id=(s.rank ^ offset,))
    pl.semaphore_wait(barrier, len(ALL))
    r.stream[...] = jnp.zeros(r.stream.shape, F32)
    r.bank[...] = jnp.zeros(r.bank.shape, F32)
    s.start_attention(jnp.int32(0))
    for copy in s.states():
        copy.start()
    s.state_load().start()
    lax.fori_loop(0, layers, partial(_layer, s), None)
    # What ran ahead of a layer that does not exist.
    for mla, names in ATTENTION.items():

        @pl.when(r.mla[layers] == int(mla))
        def drain(names: tuple[str, ...] = names) -> None:
            for name in names:
                s.load(name).wait()

    s.load("router").wait()
    for copy in s.states():
        copy.wait()
    s.state_load().wait()
    r.out[...] = r.stream[...]


def _scratch(peer: Peer) -> list[Any]:
    hidden, latent = peer.config.hidden_size, peer.config.routed_expert_hidden_size
    heads, vmem, dma = peer.cache_panels // 3, pltpu.VMEM, pltpu.SemaphoreType.DMA
    messages = (RANKS, MESSAGE_ROWS, LANES)
    half = POSITIONS // 2
    return [
        vmem((SUBLANES, hidden), F32),
        vmem((ENTRIES + 1, SUBLANES, hidden), F32),
        vmem((LHS_ROWS, hidden), BF16),
        vmem((LHS_ROWS, hidden), F32),
        vmem((LHS_ROWS, hidden), F32),
        vmem((SUBLANES, latent), F32),
        vmem((SUBLANES, peer.config.num_experts), F32),
        vmem(_LIST_SHAPE, I32),
        pltpu.SMEM(_LIST_SHAPE, I32),
        *(vmem((peer.buffer_rows(b), LANES), U32) for b in ("pool", "router", "late")),
        vmem(messages, U32),
        vmem(messages, U32),
        vmem((heads, LANES, LANES), F32),
        vmem((peer.rows, heads, LANES, LANES), F32),
        vmem((2, 2 * heads, half, LANES), U32),
        vmem((2, heads, half, LANES), U32),
        dma((len(peer.matrices),)),
        dma((SLOTS,)),
        dma((2 * EXCHANGES,)),
        dma((2,)),
        dma((2,)),
    ]


def skeleton(rows: int, context: int) -> Subject:
    """The skeleton of the published model on 32 cores, for the compiler.

    Args:
      rows: 1, or 8 of one sequence.
      context: tokens before them; whole tiles are read, at least two.
    """
    peer = Peer(ModelConfig.published(), rows, context)
    mesh = compile_mesh(axes=(AXIS,))
    config = peer.config
    layers = config.num_hidden_layers - config.first_k_dense_replace
    heads = peer.cache_panels // 3
    call = pl.pallas_call(
        partial(_body, peer, layers),
        name="skeleton",
        out_shape=jax.ShapeDtypeStruct((SUBLANES, config.hidden_size), F32),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)] + [pl.BlockSpec(memory_space=pl.ANY)] * 4,
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        scratch_shapes=_scratch(peer),
        compiler_params=pltpu.CompilerParams(
            collective_id=0,
            vmem_limit_bytes=TPU_V7.vmem_bytes,
            disable_bounds_checks=True,
            has_side_effects=True,
        ),
    )
    whole, split = PartitionSpec(), PartitionSpec(AXIS)
    mapped = jax.shard_map(
        lambda kinds, *own: call(kinds, *(a[0] for a in own))[None], mesh=mesh,
        in_specs=(whole, *[split] * 4), out_specs=split, check_vma=False,
    )  # fmt: skip
    shapes = (
        ((layers + 1, max(matrix_rows(*shape) for shape in peer.matrices.values()), LANES), U32),
        ((layers * config.num_experts // EXPERT_GROUPS, peer.expert_rows, LANES), U32),
        ((rows + 1, heads, LANES, LANES), F32),
        ((peer.cache_panels, peer.cache_tiles * POSITIONS // 2, LANES), U32),
    )
    own = NamedSharding(mesh, split)
    arrays = [jax.ShapeDtypeStruct((RANKS, *s), d, sharding=own) for s, d in shapes]
    kinds = jax.ShapeDtypeStruct((layers + 1,), I32, sharding=NamedSharding(mesh, whole))
    return Subject("skeleton", jax.jit(mapped), (kinds, *arrays), mesh)


def skeleton_inputs(kernel: Kernel, rows: int) -> KernelInputs:
    """What the skeleton finds in scalar memory: the fullest of eight expert groups, every layer."""
    config = ModelConfig.published()
    first = config.first_k_dense_replace
    kinds = [int(config.is_mla(i)) for i in range(first, config.num_hidden_layers)]
    groups = fullest_groups(config, Mesh(RANKS, EXPERT_GROUPS), rows, len(kinds))
    lists = []
    for _, ids in groups:
        words = np.zeros(_LIST_SHAPE, np.uint32)
        words[0, : ids.size] = ids // EXPERT_GROUPS
        words[_COUNT_ROW] = ids.size
        lists.append([int(word) for word in words.ravel()])
    return KernelInputs(
        operands={0: [*kinds, 0]},
        fills={list_buffer(kernel): lists},
        words=partition_words(kernel.allocations, 0),
    )
