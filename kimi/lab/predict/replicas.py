"""Own replicas of small programs whose time on TPU v7 is public: copies, exchanges, a top-k, a dot.

Eight cores of a 2x2x1 slice, core `r` to core `r ^ offset`. Every kernel repeats its work as often
as its scalar operand says: the time of one turn is the difference of two runs, by their turns.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding, PartitionSpec

from kimi.kernels.chip import TPU_V7
from kimi.lab.predict.compile import Subject
from kimi.lab.predict.topology import compile_mesh

TOPOLOGY, CORES, AXIS = "tpu7x:2x2x1", 8, "tp"
ALL, CHIPS, SIBLING = range(1, CORES), (2, 4, 6), (1,)
F32, BF16, U32, I32 = jnp.float32, jnp.bfloat16, jnp.uint32, jnp.int32
Ref = Any
Body = Callable[..., None]


def subject(name: str, body: Body, arrays: Sequence[Any], scratch: Sequence[Any]) -> Subject:
    """A kernel of (turns in SMEM, arrays in HBM, result in VMEM, scratch) on all cores.

    Args:
      arrays: (shape, dtype) of a core's own arrays.
    """
    mesh = compile_mesh(TOPOLOGY, axes=(AXIS,))
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(
        body,
        name=name,
        out_shape=jax.ShapeDtypeStruct((8, 128), F32),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), *[anywhere] * len(arrays)],
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        scratch_shapes=list(scratch),
        compiler_params=pltpu.CompilerParams(
            collective_id=0, vmem_limit_bytes=TPU_V7.vmem_bytes, disable_bounds_checks=True,
            has_side_effects=True,
        ),
    )  # fmt: skip
    whole, split = PartitionSpec(), PartitionSpec(AXIS)
    mapped = jax.shard_map(
        lambda turns, *own: call(turns, *(a[0] for a in own))[None], mesh=mesh,
        in_specs=(whole, *[split] * len(arrays)), out_specs=split, check_vma=False,
    )  # fmt: skip
    own = NamedSharding(mesh, split)
    turns = jax.ShapeDtypeStruct((8,), I32, sharding=NamedSharding(mesh, whole))
    shapes = [jax.ShapeDtypeStruct((CORES, *s), d, sharding=own) for s, d in arrays]
    return Subject(name, jax.jit(mapped), (turns, *shapes), mesh)


def barrier() -> Array:
    """All cores are in the kernel; returns the own number."""
    rank, semaphore = lax.axis_index(AXIS), pltpu.get_barrier_semaphore()
    for offset in ALL:
        pl.semaphore_signal(semaphore, 1, device_id=(rank ^ offset,))
    pl.semaphore_wait(semaphore, len(ALL))
    return rank


def repeat(turns: Ref, turn: Callable[[], None]) -> None:
    """Does a turn so often."""
    lax.fori_loop(0, turns[0], lambda i, nothing: turn(), None)


def pack(x: Array) -> Array:
    """[.., R, N] float32 to [.., R, N / 2] words of two bfloat16."""
    half = x.shape[-1] // 2
    low, high = (pltpu.bitcast(part, U32) for part in (x[..., :half], x[..., half:]))
    return (low >> 16) | (high & U32(0xFFFF0000))


def unpack(words: Array) -> Array:
    """The inverse of `pack`, with the bits that it dropped as zero."""
    low, high = words << 16, words & U32(0xFFFF0000)
    return jnp.concatenate([pltpu.bitcast(low, F32), pltpu.bitcast(high, F32)], -1)


def exchange(
    rank: Array, offsets: Sequence[int], source: Callable[[Array], Ref], target: Ref, sems: Ref
) -> None:
    """Sends `source(peer)` to `target` of every peer, and waits for what they send."""
    copies = [
        pltpu.make_async_remote_copy(
            source(rank ^ offset), target, sems.at[0], sems.at[1], device_id=(rank ^ offset,)
        )
        for offset in offsets
    ]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.wait()


def copy(nbytes: int, offsets: Sequence[int]) -> Subject:
    """Copies of so many bytes to each of some cores at once."""
    rows = nbytes // 512

    def body(turns: Ref, out: Ref, source: Ref, target: Ref, sems: Ref) -> None:
        rank = barrier()

        def turn() -> None:
            for i, offset in enumerate(offsets):
                _remote(source, target.at[i], sems, rank ^ offset).start()
            for i, offset in enumerate(offsets):
                _remote(source, target.at[i], sems, rank ^ offset).wait()

        repeat(turns, turn)
        out[...] = pltpu.bitcast(target[0, 0:8, :], F32)

    here = pltpu.VMEM((rows, 128), U32), pltpu.VMEM((len(offsets), rows, 128), U32)
    return subject("copy", body, (), (*here, pltpu.SemaphoreType.DMA((2,))))


def _remote(source: Ref, target: Ref, sems: Ref, peer: Array) -> Any:
    return pltpu.make_async_remote_copy(source, target, sems.at[0], sems.at[1], device_id=(peer,))


class Exchanges:
    """Buffers of exchanges among eight cores, [rows, width] each, of float32 or bfloat16 pairs."""

    def __init__(self, rows: int, width: int, halves: bool) -> None:
        self.rows, self.width, self.halves = rows, width, halves
        self.words = width // 2 if halves else width

    @property
    def scratch(self) -> list[Any]:
        """For `bind`."""
        words = pltpu.VMEM((CORES, self.rows, self.words), U32)
        return [words, words, words, pltpu.SemaphoreType.DMA((4, 2))]

    def bind(self, rank: Array, send: Ref, receive: Ref, gathered: Ref, sems: Ref) -> None:
        """The buffers of a kernel."""
        self.send, self.receive, self.gathered = send, receive, gathered
        self.sems, self.rank = sems, rank

    def encoded(self, x: Array) -> Array:
        """Values as they travel."""
        return pack(x) if self.halves else pltpu.bitcast(x, U32)

    def decoded(self, words: Array) -> Array:
        """Values that came."""
        return unpack(words) if self.halves else pltpu.bitcast(words, F32)

    def gather(self, x: Array) -> None:
        """All cores get [rows, width] of all, in `gathered`."""
        self.send[0] = self.encoded(x)
        self.gathered[self.rank] = self.send[0]
        target = self.gathered.at[self.rank]
        exchange(self.rank, ALL, lambda peer: self.send.at[0], target, self.sems.at[1])

    def reduce(self, block: Callable[[int], Array]) -> Array:
        """The sum over cores of the own column block, one of eight."""
        for peer in range(CORES):
            self.send[peer] = self.encoded(block(peer))
        self.receive[self.rank] = self.send[self.rank]
        target = self.receive.at[self.rank]
        exchange(self.rank, ALL, lambda peer: self.send.at[peer], target, self.sems.at[0])
        return self.summed(range(CORES))

    def summed(self, slots: Sequence[int]) -> Array:
        """Of what lies in some slots."""
        total = self.decoded(self.receive[slots[0]])
        for slot in slots[1:]:
            total += self.decoded(self.receive[slot])
        return total


def _exchanges(
    rows: int, width: int, halves: bool, turn: Callable[[Exchanges, Ref], None]
) -> Subject:
    """A kernel that repeats exchanges of [rows, 8 blocks of width]."""
    buffers = Exchanges(rows, width, halves)

    def body(turns: Ref, out: Ref, values: Ref, *refs: Ref) -> None:
        buffers.bind(barrier(), *refs)
        values[...] = jnp.zeros(values.shape, F32)
        repeat(turns, lambda: turn(buffers, values))
        out[...] = values[0, 0:8, 0:128]

    values = pltpu.VMEM((CORES, rows, width), F32)
    return subject("exchanges", body, (), (values, *buffers.scratch))


def all_reduce(rows: int, width: int, halves: bool) -> Subject:
    """Reduce-scatter and all-gather of [rows, width] on every core."""

    def turn(x: Exchanges, values: Ref) -> None:
        x.gather(x.reduce(lambda peer: values[peer]))
        for peer in range(CORES):
            values[peer] = x.decoded(x.gathered[peer])

    return _exchanges(rows, width // CORES, halves, turn)


def all_gather(rows: int, width: int) -> Subject:
    """All cores get the bfloat16 [rows, width] of each."""

    def turn(x: Exchanges, values: Ref) -> None:
        x.gather(values[0])
        values[0] = x.decoded(x.gathered[CORES - 1])

    return _exchanges(rows, width, True, turn)


def paired_reduce(rows: int, width: int, halves: bool) -> Subject:
    """`all_reduce`: halves with the sibling core, quarters of those over the chips, and back."""

    def turn(x: Exchanges, values: Ref) -> None:
        core, chip = x.rank & 1, x.rank >> 1
        for block in range(CORES):
            x.send[block] = x.encoded(values[block])
        theirs = x.send.at[pl.ds(4 * (1 - core), 4)]
        exchange(x.rank, SIBLING, lambda peer: theirs, x.gathered.at[pl.ds(0, 4)], x.sems.at[2])
        for block in range(4):
            own = x.decoded(x.send[4 * core + block])
            x.send[block] = x.encoded(own + x.decoded(x.gathered[block]))
        x.receive[chip] = x.send[chip]
        exchange(x.rank, CHIPS, lambda peer: x.send.at[peer >> 1], x.receive.at[chip], x.sems.at[0])
        x.send[0] = x.encoded(x.summed(range(4)))
        mine = x.gathered.at[pl.ds(4 * core, 4)]
        x.gathered[4 * core + chip] = x.send[0]
        exchange(
            x.rank, CHIPS, lambda peer: x.send.at[0], x.gathered.at[4 * core + chip], x.sems.at[1]
        )
        exchange(x.rank, SIBLING, lambda peer: mine, mine, x.sems.at[3])
        for block in range(CORES):
            values[block] = x.decoded(x.gathered[block])

    return _exchanges(rows, width // CORES, halves, turn)


def paired_gather(rows: int, width: int) -> Subject:
    """`all_gather` as the second half of `paired_reduce`: over the chips, then the sibling core."""

    def turn(x: Exchanges, values: Ref) -> None:
        core, chip = x.rank & 1, x.rank >> 1
        x.send[0] = x.encoded(values[0])
        x.gathered[4 * core + chip] = x.send[0]
        target = x.gathered.at[4 * core + chip]
        exchange(x.rank, CHIPS, lambda peer: x.send.at[0], target, x.sems.at[0])
        mine = x.gathered.at[pl.ds(4 * core, 4)]
        exchange(x.rank, SIBLING, lambda peer: mine, mine, x.sems.at[2])
        values[0] = x.decoded(x.gathered[CORES - 1])

    return _exchanges(rows, width, True, turn)


def top_k(scores: Array, k: int) -> Array:
    """The `k` largest of [1, E], by counting for each how many are larger: ids, [1, E] by rank."""
    count = scores.shape[1]
    column = jnp.broadcast_to(scores, (128, count)).T[:, 0:1]
    row_id = lax.broadcasted_iota(I32, (count, count), 1)
    column_id = lax.broadcasted_iota(I32, (count, count), 0)
    ahead = (scores > column) | ((scores == column) & (row_id < column_id))
    rank = jnp.sum(ahead.astype(F32), 1, keepdims=True)
    chosen = (rank == row_id.astype(F32)).astype(F32) * column_id.astype(F32)
    return jnp.sum(chosen, 0, keepdims=True)


def routing() -> Subject:
    """The eight largest of 256 scores, to scalar memory."""

    def body(turns: Ref, out: Ref, scores: Ref, ids: Ref, listed: Ref) -> None:
        barrier()

        def turn() -> None:
            found = top_k(jax.nn.sigmoid(scores[0:1, :]), 8)
            ids[0:1, :] = found[:, :128].astype(I32)
            pltpu.sync_copy(ids, listed)
            scores[0:1, :] = scores[0:1, :] + listed[0, 0].astype(F32)

        repeat(turns, turn)
        out[...] = scores[:, 0:128]

    listed = pltpu.VMEM((8, 128), I32), pltpu.SMEM((8, 128), I32)
    return subject("routing", body, (), (pltpu.VMEM((8, 256), F32), *listed))
