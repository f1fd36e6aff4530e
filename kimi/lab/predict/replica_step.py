"""Own replica of a published decode step of 62 layers on eight cores, of its ring and its experts.

Facts of that step: hidden 8192, 256 experts of which eight are chosen, 4096 wide, each divided over
all cores, NVFP4 (3.375 MiB a core); dense matrices stream as tiles of 2 MiB through 12 banks, 38 a
layer in bfloat16 and 21 in int8; tiles freed while the router runs are refilled behind the first
experts; four expert slots; an all-reduce behind attention and experts each, a gather before and
behind the experts. Arithmetic has the right shapes: results mean nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu

from kimi.lab.predict.compile import Subject
from kimi.lab.predict.replicas import (
    BF16,
    CORES,
    F32,
    I32,
    U32,
    Exchanges,
    Ref,
    barrier,
    subject,
    top_k,
)

BANKS, TILE = 12, 1024  # tiles of [512, 1024] words
HIDDEN, WIDTH, EXPERTS, CHOSEN = 8192, 4096, 256, 8
# Tiles of a layer: query, key and value, gate; output; before the experts; router; behind.
BF16_TILES, INT8_TILES = (18, 8, 4, 4, 4), (9, 4, 2, 4, 2)
HEAD_TILES = {False: 200, True: 100}  # 400 MiB, or 200
_GROUP, _DEPTH = 16, 512  # inputs under one scale; inputs of a product
_UP, _UP_SCALES, _DOWN, _DOWN_SCALES = 512, 64, 256, 32  # rows of 1024 words
EXPERT_ROWS = _UP + _UP_SCALES + _DOWN + _DOWN_SCALES
KEYS = 256  # positions of a cache tile
FP4, FP8, I8 = jnp.float4_e2m1fn, jnp.float8_e4m3fn, jnp.int8


class Ring:
    """Tiles of all layers in order, through the banks."""

    def __init__(self, dense: Ref, banks: Ref, sems: Ref, int8: bool) -> None:
        self.dense, self.banks, self.sems, self.int8 = dense, banks, sems, int8
        self.held: list[Array | int] = []

    def _copy(self, index: Array | int) -> Any:
        slot = lax.rem(index, BANKS)
        source = self.dense.at[index & 63]
        return pltpu.make_async_copy(source, self.banks.at[slot], self.sems.at[slot])

    def prime(self) -> None:
        """Requests the first tiles."""
        for index in range(BANKS):
            self._copy(index).start()

    def product(
        self, left: Callable[[], Array], first: Array | int, count: int, refill: bool = True,
        int8: bool | None = None,
    ) -> Array:  # fmt: skip
        """[R, K] @ `count` tiles: the sum of its parts, [R, 1024]."""
        total = jnp.zeros((16, TILE), F32)
        kind = I8 if (self.int8 if int8 is None else int8) else BF16
        for i in range(count):
            index = first + i
            self._copy(index).wait()
            words = self.banks[lax.rem(index, BANKS)]
            tile = pltpu.bitcast(words, kind)
            x = left()
            if kind is I8:
                # The tile is [2048, 1024]: two products of 1024 inputs, one behind the other.
                x = jnp.concatenate([x, x], 1)
            total += jnp.dot(x, tile, preferred_element_type=F32)
            if refill:
                self._copy(index + BANKS).start()
            else:
                self.held.append(index + BANKS)
        return total

    def refill(self) -> None:
        """Requests what was held back."""
        for index in self.held:
            self._copy(index).start()
        self.held = []

    def drain(self, first: Array | int) -> None:
        """Waits for what ran ahead."""
        for i in range(BANKS):
            self._copy(first + i).wait()


def spread(x: Array) -> Array:
    """[1, 512] to [32, 512]: a group of 16 inputs a row."""
    group = lax.broadcasted_iota(I32, (_DEPTH // _GROUP, _DEPTH), 1) // _GROUP
    mask = group == lax.broadcasted_iota(I32, (_DEPTH // _GROUP, _DEPTH), 0)
    return jnp.where(mask, jnp.broadcast_to(x, mask.shape), 0.0).astype(BF16)


def scaled_product(x: Array, slot: Ref, row: int, scale_row: int) -> Array:
    """[1, 512] @ NVFP4 [512, 1024] with a scale for every 16 inputs."""
    weights = pltpu.bitcast(slot[row : row + _DEPTH // 8, :], FP4).astype(FP8)
    scale = pltpu.bitcast(slot[scale_row : scale_row + 8, :], FP8).astype(F32)
    part = jnp.dot(spread(x), weights, preferred_element_type=F32)
    return jnp.sum(part * scale, 0, keepdims=True)


def gate_up(x: Callable[[int], Array], slot: Ref) -> Array:
    """Gate and up of an expert on a core, [1, 1024]; `x` gives 512 inputs."""
    parts = [scaled_product(x(i), slot, 64 * i, _UP + 8 * i) for i in range(WIDTH // _DEPTH)]
    return sum(parts[1:], parts[0])


def expert(x: Callable[[int], Array], slot: Ref, out: Ref, index: int) -> None:
    """An expert's share of a core: [1, 4096] into row `index`."""
    both = gate_up(x, slot)
    inner = jax.nn.silu(both[:, :_DEPTH]) * both[:, _DEPTH:]
    for panel in range(WIDTH // TILE):
        row, scale = _UP + _UP_SCALES + 64 * panel, _UP + _UP_SCALES + _DOWN + 8 * panel
        part = scaled_product(inner, slot, row, scale)
        out[index : index + 1, panel * TILE : (panel + 1) * TILE] = part


class Experts:
    """The chosen experts of a layer, through so many slots."""

    def __init__(self, weights: Ref, slots: Ref, sems: Ref, ids: Ref, count: int) -> None:
        self.weights, self.slots, self.sems, self.ids, self.count = weights, slots, sems, ids, count

    def _copy(self, index: int) -> Any:
        slot = index % self.count
        chosen = self.ids[0, index] & 31
        return pltpu.make_async_copy(
            self.weights.at[chosen], self.slots.at[slot], self.sems.at[slot]
        )

    def request(self) -> None:
        """The first ones."""
        for index in range(min(self.count, CHOSEN)):
            self._copy(index).start()

    def run(self, x: Callable[[int], Array], out: Ref) -> None:
        """All of them, one after another."""
        for index in range(CHOSEN):
            self._copy(index).wait()
            expert(x, self.slots.at[index % self.count], out, index)
            if index + self.count < CHOSEN:
                self._copy(index + self.count).start()


def norm(x: Array) -> Array:
    """RMS norm."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)


class _Step:
    """One core's run of the whole step."""

    def __init__(self, int8: bool, slots: int, *refs: Ref) -> None:
        (self.turns, dense, weights, self.cache, self.out, self.stream, self.normed, self.values,
         self.inner, self.scores, self.ids_vector, ids, banks, expert_slots, self.keys,
         ring_sems, expert_sems, self.cache_sems, *exchanges) = refs  # fmt: skip
        rank = barrier()
        self.tiles = INT8_TILES if int8 else BF16_TILES
        self.ring = Ring(dense, banks, ring_sems, int8)
        self.experts = Experts(weights, expert_slots, expert_sems, ids, slots)
        self.ids = ids
        self.wide, self.narrow, self.shared, self.half = (
            Exchanges(8, width, True) for width in (HIDDEN // 8, WIDTH // 8, TILE, _DEPTH)
        )
        for n, x in enumerate((self.wide, self.narrow, self.shared, self.half)):
            x.bind(rank, *exchanges[4 * n : 4 * n + 4])

    def left(self) -> Array:
        """The left-hand side of dense products."""
        return self.normed[:, :TILE]

    def keys_copy(self) -> Sequence[Any]:
        """The only tile of keys and values."""
        return [
            pltpu.make_async_copy(self.cache.at[i], self.keys.at[i], self.cache_sems.at[i])
            for i in range(2)
        ]

    def residual(self, of: Callable[[int], Array], width: int) -> None:
        """Adds what came to the stream, and norms it."""
        for block in range(CORES):
            at = slice(block * width, (block + 1) * width)
            self.stream[:, at] = self.stream[:, at] * 0.9 + of(block) * 0.1
        row = norm(self.stream[...]).astype(BF16)
        self.normed[...] = jnp.concatenate([row, row], 0)

    def attend(self, query: Array) -> None:
        """Attention over one tile."""
        for copy in self.keys_copy():
            copy.wait()
        left = query[:, :128].astype(BF16)
        keys, values = (pltpu.bitcast(self.keys[i], BF16) for i in range(2))
        scores = lax.dot_general(left, keys, (((1,), (1,)), ((), ())), preferred_element_type=F32)
        weights = jnp.exp(scores - jnp.max(scores, -1, keepdims=True))
        found = jnp.dot(weights.astype(BF16), values, preferred_element_type=F32)
        self.values[:, :128] = found[0:8] / jnp.sum(weights, -1, keepdims=True)[0:8]

    def layer(self, index: Array, nothing: None) -> None:
        """One layer."""
        first = index * sum(self.tiles)
        for copy in self.keys_copy():
            copy.start()
        query = self.ring.product(self.left, first, self.tiles[0])
        self.attend(query)
        out = self.ring.product(self.left, first + self.tiles[0], self.tiles[1])
        self.values[:, :TILE] = out[0:8]
        self.wide.gather(self.wide.reduce(lambda peer: self.values[:, :TILE]))
        self.residual(lambda block: self.wide.decoded(self.wide.gathered[block]), HIDDEN // 8)
        first += self.tiles[0] + self.tiles[1]
        before = self.ring.product(self.left, first, self.tiles[2], refill=False)
        scores = self.ring.product(
            self.left, first + self.tiles[2], self.tiles[3], refill=False, int8=False
        )
        chosen = top_k(jax.nn.sigmoid(scores[0:1, :EXPERTS]), CHOSEN)
        self.ids_vector[0:1, :] = chosen[:, :128].astype(I32)
        pltpu.sync_copy(self.ids_vector, self.ids)
        self.experts.request()
        self.ring.refill()
        self.half.gather(before[0:8, :_DEPTH])
        for block in range(CORES):
            part = self.half.decoded(self.half.gathered[block])
            self.inner[:, block * _DEPTH : (block + 1) * _DEPTH] = part
        self.inner[...] = norm(self.inner[...])
        self.experts.run(lambda i: self.inner[0:1, i * _DEPTH : (i + 1) * _DEPTH], self.values)
        self.narrow.gather(
            self.narrow.reduce(lambda peer: self.values[:, peer * _DEPTH : (peer + 1) * _DEPTH])
        )
        for block in range(CORES):
            part = self.narrow.decoded(self.narrow.gathered[block])
            self.inner[:, block * _DEPTH : (block + 1) * _DEPTH] = part
        mixed = jnp.sum(norm(self.inner[...]), 0, keepdims=True)
        self.normed[:, :WIDTH] = jnp.broadcast_to(mixed, (16, WIDTH)).astype(BF16)
        behind = self.ring.product(self.left, first + self.tiles[2] + self.tiles[3], self.tiles[4])
        self.shared.gather(behind[0:8])
        self.residual(lambda block: self.shared.decoded(self.shared.gathered[block]), TILE)

    def run(self, head: int) -> None:
        """All layers and the head."""
        self.stream[...] = jnp.zeros(self.stream.shape, F32)
        self.normed[...] = jnp.zeros(self.normed.shape, BF16)
        self.values[...] = jnp.zeros(self.values.shape, F32)
        self.ring.prime()
        lax.fori_loop(0, self.turns[0], self.layer, None)
        first = self.turns[0] * sum(self.tiles)

        def tile(index: Array, total: Array) -> Array:
            return total + self.ring.product(self.left, first + 4 * index, 4)

        total = lax.fori_loop(0, head // 4, tile, jnp.zeros((16, TILE), F32))
        self.ring.drain(first + head)
        self.out[...] = total[0:8, :128]


def _exchange_scratch() -> list[Any]:
    widths = (HIDDEN // 8, WIDTH // 8, TILE, _DEPTH)
    return [ref for width in widths for ref in Exchanges(8, width, True).scratch]


def step(int8: bool, slots: int = 4) -> Subject:
    """The step; its scalar operand is the number of layers."""

    def body(*refs: Ref) -> None:
        _Step(int8, slots, *refs).run(HEAD_TILES[int8])

    vmem, dma = pltpu.VMEM, pltpu.SemaphoreType.DMA
    scratch = [
        vmem((8, HIDDEN), F32), vmem((16, HIDDEN), BF16), vmem((8, HIDDEN), F32),
        vmem((8, WIDTH), F32), vmem((8, EXPERTS), F32), vmem((8, 128), I32),
        pltpu.SMEM((8, 128), I32), vmem((BANKS, TILE // 2, TILE), U32),
        vmem((slots, EXPERT_ROWS, TILE), U32), vmem((2, KEYS // 2, 128), U32),
        dma((BANKS,)), dma((slots,)), dma((2,)), *_exchange_scratch(),
    ]  # fmt: skip
    arrays = (
        ((64, TILE // 2, TILE), U32), ((32, EXPERT_ROWS, TILE), U32), ((2, KEYS // 2, 128), U32),
    )  # fmt: skip
    return subject("step", body, arrays, scratch)


def ring(int8: bool, compute: bool = True) -> Subject:
    """Tiles alone: 16 layers of the dense matrices a call; or their copies alone."""

    def body(turns: Ref, dense: Ref, out: Ref, normed: Ref, banks: Ref, sems: Ref) -> None:
        barrier()
        tiles = Ring(dense, banks, sems, int8)
        normed[...] = jnp.zeros(normed.shape, BF16)
        counts = INT8_TILES if int8 else BF16_TILES
        tiles.prime()

        def layer(index: Array, total: Array) -> Array:
            first = index * sum(counts)
            for n, count in enumerate(counts):
                kind = False if n == 3 else int8
                if compute:
                    total += tiles.product(lambda: normed[...], first, count, int8=kind)
                else:
                    for i in range(count):
                        tiles._copy(first + i).wait()
                        tiles._copy(first + i + BANKS).start()
                first += count
            return total

        total = lax.fori_loop(0, turns[0], layer, jnp.zeros((16, TILE), F32))
        tiles.drain(turns[0] * sum(counts))
        out[...] = total[0:8, :128]

    scratch = [
        pltpu.VMEM((16, TILE), BF16), pltpu.VMEM((BANKS, TILE // 2, TILE), U32),
        pltpu.SemaphoreType.DMA((BANKS,)),
    ]  # fmt: skip
    return subject("ring", body, (((64, TILE // 2, TILE), U32),), scratch)


def slices() -> Subject:
    """Gate and up of an expert, from VMEM."""

    def body(turns: Ref, weights: Ref, out: Ref, x: Ref, slot: Ref, sem: Ref) -> None:
        barrier()
        pltpu.make_async_copy(weights, slot, sem.at[0]).start()
        pltpu.make_async_copy(weights, slot, sem.at[0]).wait()
        x[...] = jnp.zeros(x.shape, F32)

        def turn(index: Array, nothing: None) -> None:
            found = gate_up(partial(_inputs, x), slot)
            x[0:1, :TILE] = found

        lax.fori_loop(0, turns[0], turn, None)
        out[...] = jnp.broadcast_to(x[0:1, :128], (8, 128))

    scratch = [
        pltpu.VMEM((8, WIDTH), F32), pltpu.VMEM((EXPERT_ROWS, TILE), U32),
        pltpu.SemaphoreType.DMA((1,)),
    ]  # fmt: skip
    return subject("slices", body, (((EXPERT_ROWS, TILE), U32),), scratch)


def _inputs(x: Ref, index: int) -> Array:
    return x[0:1, index * _DEPTH : (index + 1) * _DEPTH]
