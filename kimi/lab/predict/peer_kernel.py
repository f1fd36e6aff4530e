"""The body of the peer-like skeleton: real copies, exchanges and shapes, stand-in arithmetic."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES, round_up
from kimi.lab.predict.peer import POSITIONS, Peer, matrix_rows

AXIS = "tp"
LHS_ROWS = 16
MESSAGE_ROWS = 64  # of the longest message
ENTRIES = 5  # of a residual mix
TOP = 16  # experts of a token
EXCHANGES = 14
F32, U32, I32 = jnp.float32, jnp.uint32, jnp.int32
BF16, FP8, FP4 = jnp.bfloat16, jnp.float8_e4m3fn, jnp.float4_e2m1fn
_HIGH = 0xFFFF0000
Ref = Any
Copy = Any
ATTENTION = {False: ("decay", "kda_in", "kda_out"), True: ("q_a", "kv_a")}
LATE = ("q_b", "kv_b", "gate", "mla_out")


@dataclass(frozen=True)
class Refs:
    """Operands in HBM, buffers, semaphores, in the order of `skeleton`."""

    mla: Ref  # SMEM [layers]: 1 for an MLA layer
    dense: Ref
    experts: Ref
    state: Ref
    cache: Ref
    out: Ref
    stream: Ref
    bank: Ref
    normed: Ref
    wide: Ref
    shared: Ref
    latent: Ref
    scores: Ref
    ids: Ref
    expert_list: Ref  # SMEM
    pool: Ref
    router: Ref
    late: Ref
    send: Ref
    receive: Ref
    state_in: Ref
    state_out: Ref
    keys: Ref
    values: Ref
    load_sems: Ref
    expert_sems: Ref
    exchange_sems: Ref
    state_sems: Ref
    cache_sems: Ref


def join(parts: Sequence[Array], axis: int = 1) -> Array:
    """Concatenates."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


def norm(x: Array) -> Array:
    """RMS norm."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)


def situ(gate: Array, up: Array) -> Array:
    """The activation of K3."""
    return 4 * jnp.tanh(gate / 4) * jax.nn.sigmoid(gate) * 25 * jnp.tanh(up / 25)


def scales(words: Array, byte: int) -> Array:
    """Powers of two whose exponents are one byte of each word."""
    return pltpu.bitcast(((words >> (8 * byte)) & U32(255)) << 23, F32)


def twice(x: Array) -> Array:
    """Rows, and the same below."""
    return jnp.concatenate([x, x], 0)


class Skeleton:
    """One core's run."""

    def __init__(self, peer: Peer, refs: Refs):
        self.peer, self.r = peer, refs
        self.rank = lax.axis_index(AXIS)
        self.one_row = peer.rows == 1
        self.hidden = peer.config.hidden_size
        self.width = peer.config.routed_expert_hidden_size

    # ---- copies
    def load(self, name: str, layer: Array | int = 0) -> Copy:
        """A matrix into its buffer."""
        names = list(self.peer.matrices)
        buffer, row = self.peer.buffers[name]
        rows = matrix_rows(*self.peer.matrices[name])
        target = getattr(self.r, buffer).at[pl.ds(row, rows)]
        source = self.r.dense.at[layer, pl.ds(0, rows)]
        return pltpu.make_async_copy(source, target, self.r.load_sems.at[names.index(name)])

    def start_attention(self, layer: Array) -> None:
        """What may stream before a layer begins: only once the last layer's experts are done."""
        for mla, names in ATTENTION.items():

            @pl.when(self.r.mla[layer] == int(mla))
            def _(names: tuple[str, ...] = names) -> None:
                for name in names:
                    self.load(name, layer).start()

        self.load("router", layer).start()

    def states(self) -> list[Copy]:
        """Write-back of the state after every row."""
        r = self.r
        return [
            pltpu.make_async_copy(r.state_out.at[i], r.state.at[1 + i], r.state_sems.at[1])
            for i in range(self.peer.rows)
        ]

    def state_load(self) -> Copy:
        """The state before the step."""
        return pltpu.make_async_copy(self.r.state.at[0], self.r.state_in, self.r.state_sems.at[0])

    def cache_loads(self, tile: Array | int, slot: Array | int) -> list[Copy]:
        """Keys and values of a tile of positions."""
        r, split = self.r, self.r.keys.shape[1]
        rows = pl.ds(tile * (POSITIONS // 2), POSITIONS // 2)
        halves = ((r.keys, pl.ds(0, split)), (r.values, pl.ds(split, r.values.shape[1])))
        return [
            pltpu.make_async_copy(r.cache.at[panels, rows], target.at[slot], r.cache_sems.at[slot])
            for target, panels in halves
        ]

    # ---- exchanges
    def send(self, site: int, offsets: Sequence[int], rows: int, same: bool = True) -> int:
        """Starts an exchange; returns the rows of a message, padded to whole registers."""
        rows = round_up(rows, SUBLANES)
        for i, offset in enumerate(offsets, 1):
            pltpu.make_async_remote_copy(
                self.r.send.at[0 if same else i, pl.ds(0, rows)],
                self.r.receive.at[i, pl.ds(0, rows)],
                self.r.exchange_sems.at[2 * site],
                self.r.exchange_sems.at[2 * site + 1],
                device_id=(self.rank ^ offset,),
            ).start()
        return rows

    def arrive(self, site: int, count: int, rows: int) -> None:
        """Waits for an exchange."""
        here = self.r.receive.at[pl.ds(0, count), pl.ds(0, rows)]
        for end in (1, 0):
            pltpu.make_async_copy(here, here, self.r.exchange_sems.at[2 * site + end]).wait()

    def pack(self, values: Array, messages: int, rows: int) -> None:
        """[8, N] float32 to messages of bfloat16 pairs."""
        half = values.shape[1] // 2
        words = (pltpu.bitcast(values[:, :half], U32) >> 16) | (
            pltpu.bitcast(values[:, half:], U32) & U32(_HIGH)
        )
        panels = [(b, p) for b in range(self.peer.rows) for p in range(half // LANES)]
        for n, (row, panel) in enumerate(panels[: messages * rows]):
            part = words[row : row + 1, panel * LANES : (panel + 1) * LANES]
            self.r.send[n // rows, n % rows : n % rows + 1, :] = part

    def total(self, count: int, rows: int) -> Array:
        """The sum of what came."""
        low = jnp.zeros((rows, LANES), F32)
        high = jnp.zeros((rows, LANES), F32)
        for i in range(1, count + 1):
            words = self.r.receive[i, 0:rows, :]
            low += pltpu.bitcast(words << 16, F32)
            high += pltpu.bitcast(words & U32(_HIGH), F32)
        return low + high

    def exchange(
        self, site: int, offsets: Sequence[int], rows: int, values: Array,
        same: bool = True, summed: bool = False,
    ) -> None:  # fmt: skip
        """A whole exchange, exposed."""
        with jax.named_scope(f"exchange_{site}"):
            self.pack(values, 1 if same else len(offsets) + 1, rows)
            padded = self.send(site, offsets, rows, same)
            self.arrive(site, len(offsets), padded)
            if summed:
                self.r.send[0, 0:padded, :] = pltpu.bitcast(self.total(len(offsets), padded), U32)

    # ---- arithmetic
    def product(self, left: Ref, name: str, target: Ref, column: int = 0) -> None:
        """left @ matrix, from its buffer, once it is here."""
        inputs, outputs = self.peer.matrices[name]
        buffer, first = self.peer.buffers[name]
        ref = getattr(self.r, buffer)
        self.load(name).wait()
        depth = min(inputs, self.hidden // 4)
        for start in range(0, outputs // LANES, 4):
            panels, total = range(start, min(start + 4, outputs // LANES)), None
            for k in range(0, inputs, depth):
                rows = [first + p * (inputs // 2) + k // 2 for p in panels]
                words = join([ref[pl.ds(row, depth // 2), :] for row in rows])
                part = jnp.dot(
                    left[:, k : k + depth], pltpu.bitcast(words, BF16), preferred_element_type=F32
                )
                total = part if total is None else total + part
            assert total is not None
            at = column + start * LANES
            target[:, at : at + total.shape[1]] = total

    def mix(self) -> None:
        """The residual mix over earlier streams, and its norm."""
        with jax.named_scope("mix"):
            fold = self.r.bank[ENTRIES]
            streams = [*(self.r.bank[i] for i in range(ENTRIES - 1)), self.r.stream[...]]
            scores = [
                jnp.sum(s * fold, -1, keepdims=True)
                * lax.rsqrt(jnp.mean(s * s, -1, keepdims=True) + 1e-5)
                for s in streams
            ]
            highest = scores[0]
            for score in scores[1:]:
                highest = jnp.maximum(highest, score)
            weights = [jnp.exp(score - highest) for score in scores]
            mixed = sum((w * s for w, s in zip(weights[1:], streams[1:], strict=True)),
                        weights[0] * streams[0])  # fmt: skip
            normed = norm(mixed / sum(weights[1:], weights[0])).astype(BF16)
            self.r.normed[0:SUBLANES, :] = normed
            self.r.normed[SUBLANES:, :] = jnp.zeros_like(normed)

    def delta(self) -> None:
        """The delta rule, row after row."""
        r, wide = self.r, self.r.wide
        with jax.named_scope("kda"):
            self.state_load().wait()
            for copy in self.states():
                copy.wait()
            heads = r.state_in.shape[0]
            for head in range(heads):
                parts = [head + heads * i for i in range(4)]
                q, k, v, g = (wide[0:SUBLANES, p * LANES : (p + 1) * LANES] for p in parts)
                q, k, v = (x * jax.nn.sigmoid(x) for x in (q, k, v))
                g = jnp.exp(-5 * jax.nn.sigmoid(g))
                q, k = (x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6) for x in (q, k))
                qt, kt, gt, memory, outs = q.T, k.T, g.T, r.state_in[head], []
                for row in range(self.peer.rows):
                    one = slice(row, row + 1)
                    memory = memory * gt[:, one]
                    seen = jnp.sum(memory * kt[:, one], 0, keepdims=True)
                    memory = memory + kt[:, one] * (v[one] - seen)
                    outs.append(jnp.sum(memory * qt[:, one], 0, keepdims=True))
                    r.state_out[row, head] = memory
                out = join(outs, 0)
                out = jnp.broadcast_to(out, (SUBLANES, LANES)) if self.one_row else out
                gate = wide[0:SUBLANES, parts[3] * LANES : (parts[3] + 1) * LANES]
                wide[0:SUBLANES, head * LANES : (head + 1) * LANES] = norm(out) * jax.nn.sigmoid(
                    gate
                )
            for copy in self.states():
                copy.start()
            self.state_load().start()

    def attend(self) -> None:
        """Attention over expanded keys and values."""
        r, wide, heads = self.r, self.r.wide, self.r.values.shape[1]
        count = self.peer.cache_tiles
        with jax.named_scope("mla"):
            queries = [
                twice(wide[0:SUBLANES, 2 * h * LANES : 2 * (h + 1) * LANES]).astype(BF16)
                for h in range(heads)
            ]

            def tile(i: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
                slot, out = i & 1, []
                for copy in self.cache_loads(i, slot):
                    copy.wait()
                for h, query in enumerate(queries):
                    highest, denominator, total = carry[3 * h : 3 * h + 3]
                    key = pltpu.bitcast(join([r.keys[slot, 2 * h], r.keys[slot, 2 * h + 1]]), BF16)
                    value = pltpu.bitcast(r.values[slot, h], BF16)
                    score = lax.dot_general(
                        query, key, (((1,), (1,)), ((), ())), preferred_element_type=F32
                    )
                    new = jnp.maximum(highest, jnp.max(score, -1, keepdims=True))
                    weight, old = jnp.exp(score - new), jnp.exp(highest - new)
                    seen = jnp.dot(weight.astype(BF16), value, preferred_element_type=F32)
                    out += [new, denominator * old + jnp.sum(weight, -1, keepdims=True),
                            total * old + seen]  # fmt: skip

                @pl.when(i + 2 < count)
                def _() -> None:
                    for copy in self.cache_loads(i + 2, slot):
                        copy.start()

                return tuple(out)

            zero = jnp.zeros((LHS_ROWS, 1), F32)
            found = lax.fori_loop(
                0, count, tile, (zero, zero, jnp.zeros((LHS_ROWS, LANES), F32)) * heads
            )
            for h in range(heads):
                mixed = (found[3 * h + 2] / found[3 * h + 1])[0:SUBLANES]
                wide[0:SUBLANES, h * LANES : (h + 1) * LANES] = mixed

    def choose(self, after_a_few: Callable[[], None], half_way: Callable[[], None]) -> None:
        """Top k by repeated maximum; the list goes to scalar memory.

        Experts are requested one by one as they are found: here all of them half way through, where
        the simulator is given the whole list.
        """
        r = self.r
        with jax.named_scope("choose"):
            scores = jax.nn.sigmoid(r.scores[...])
            lane = lax.broadcasted_iota(I32, scores.shape, 1)
            column = lax.broadcasted_iota(I32, (SUBLANES, LANES), 1)
            found = jnp.zeros((SUBLANES, LANES), I32)
            for k in range(TOP):
                best = jnp.max(scores, -1, keepdims=True)
                first = jnp.where(scores == best, lane, scores.shape[1])
                chosen = jnp.min(first, -1, keepdims=True)
                found = jnp.where(column == k, chosen, found)
                scores = jnp.where(lane == chosen, -jnp.inf, scores)
                if k == TOP // 4:
                    after_a_few()
                if k == TOP // 2:
                    r.ids[...] = found
                    pltpu.sync_copy(r.ids, r.expert_list)
                    half_way()
            r.ids[...] = found
