"""Small kernels for the compiler, built in its own process by `kimi.lab.predict.launch`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding, PartitionSpec

from kimi.lab.predict.compile import Buffer, Subject
from kimi.lab.predict.topology import compile_mesh, one_device_mesh

i32, u32, f32 = jnp.int32, jnp.uint32, jnp.float32
SMEM, VMEM = pltpu.SMEM, pltpu.VMEM
SMALL = "tpu7x:2x2x1"


def _u(x: jax.Array) -> jax.Array:
    return x.astype(u32)


# name -> (what the kernel computes, what it must give), of two int32 scalars.
SCALAR_OPS: dict[str, tuple[Callable[..., jax.Array], Callable[[int, int], int]]] = {
    "floordiv": (lambda a, b: a // b, lambda a, b: a // b),
    "mod": (lambda a, b: a % b, lambda a, b: a % b),
    "div": (lax.div, lambda a, b: int(np.trunc(a / b))),
    "rem": (lax.rem, lambda a, b: int(np.fmod(a, b))),
    "udiv": (
        lambda a, b: lax.div(_u(a), _u(b)).astype(i32),
        lambda a, b: (a & 0xFFFFFFFF) // (b & 0xFFFFFFFF),
    ),
    "urem": (
        lambda a, b: lax.rem(_u(a), _u(b)).astype(i32),
        lambda a, b: (a & 0xFFFFFFFF) % (b & 0xFFFFFFFF),
    ),
    "rem by 24": (lambda a, b: lax.rem(a, 24), lambda a, b: int(np.fmod(a, 24))),
    "div by 7": (lambda a, b: a // 7, lambda a, b: a // 7),
    "minimum": (jnp.minimum, min),
    "maximum": (jnp.maximum, max),
    "abs": (lambda a, b: jnp.abs(a), lambda a, b: abs(a)),
    "sign": (lambda a, b: jnp.sign(a), lambda a, b: int(np.sign(a))),
    "clz": (lambda a, b: lax.clz(a), lambda a, b: 32 - (a & 0xFFFFFFFF).bit_length()),
    "arithmetic shift": (lambda a, b: a >> 3, lambda a, b: a >> 3),
    "logical shift": (
        lambda a, b: lax.shift_right_logical(a, 3),
        lambda a, b: (a & 0xFFFFFFFF) >> 3,
    ),
    "not": (lambda a, b: ~a, lambda a, b: ~a),
    "cube": (lambda a, b: a * a * a, lambda a, b: a**3),
    "int8": (lambda a, b: a.astype(jnp.int8).astype(i32), lambda a, b: (a + 128) % 256 - 128),
    "select": (
        lambda a, b: jnp.where((a > b) & (a > 3) | (b < 2), a, b),
        lambda a, b: a if (a > b and a > 3) or b < 2 else b,
    ),
    "xor of tests": (
        lambda a, b: ((a > b) ^ (b > 3)).astype(i32),
        lambda a, b: int((a > b) != (b > 3)),
    ),
    "unsigned order": (
        lambda a, b: (_u(a) >= _u(b)).astype(i32),
        lambda a, b: int((a & 0xFFFFFFFF) >= (b & 0xFFFFFFFF)),
    ),
    "float to int": (
        lambda a, b: (a.astype(f32) * 1.5 + b.astype(f32)).astype(i32),
        lambda a, b: int(np.trunc(a * 1.5 + b)),
    ),
    "float order": (
        lambda a, b: jnp.where(a.astype(f32) < b.astype(f32), 3, 4),
        lambda a, b: 3 if a < b else 4,
    ),
    "floor": (lambda a, b: jnp.floor(a.astype(f32) * 0.5).astype(i32), lambda a, b: a // 2),
}


def _call(name: str, kernel: Callable[..., None], shapes: list, **kwargs: object) -> Subject:
    mesh = one_device_mesh(SMALL)
    here = NamedSharding(mesh, PartitionSpec())
    parameters = pltpu.CompilerParams(
        disable_bounds_checks=True, has_side_effects=True, **kwargs.pop("parameters", {})
    )
    function = pl.pallas_call(kernel, name=name, compiler_params=parameters, **kwargs)
    arguments = tuple(jax.ShapeDtypeStruct(s, d, sharding=here) for s, d in shapes)
    return Subject(name, function, arguments, mesh)


def scalars() -> Subject:
    """Writes every scalar operation of its two inputs to SMEM."""

    def kernel(x, out):
        for n, (function, _) in enumerate(SCALAR_OPS.values()):
            out[n] = function(x[0], x[1])

    return _call(
        "scalars",
        kernel,
        [((8,), i32)],
        in_specs=[pl.BlockSpec(memory_space=SMEM)],
        out_specs=pl.BlockSpec(memory_space=SMEM),
        out_shape=jax.ShapeDtypeStruct((len(SCALAR_OPS),), i32),
    )


def ring() -> Subject:
    """Streams n[0] // n[1] tiles through a ring of three slots, slot by `lax.rem`."""
    depth, rows = 3, 256
    # XLA keeps small operands in VMEM, where the copies become vector code; bf16 tiles of HBM are
    # copied by vector code as well. 128 MiB of float32 are copied by DMA.

    def kernel(n, w, out, slots, sems):
        tiles = n[0] // n[1]

        def copy(tile, slot):
            return pltpu.make_async_copy(w.at[lax.rem(tile, 8)], slots.at[slot], sems.at[slot])

        for slot in range(depth):

            @pl.when(slot < tiles)
            def _(slot=slot):
                copy(slot, slot).start()

        out[...] = jnp.zeros_like(out)

        @pl.loop(0, tiles)
        def _(i):
            slot = lax.rem(i, depth)
            with jax.named_scope("tile"):
                copy(i, slot).wait()
                x = out[...].astype(jnp.bfloat16)
                tile = slots[slot].astype(jnp.bfloat16)
                out[...] += jnp.dot(x, tile, preferred_element_type=f32)

            @pl.when(i + depth < tiles)
            def _():
                copy(i + depth, slot).start()

    return _call(
        "ring",
        kernel,
        [((8,), i32), ((512, rows, rows), f32)],
        in_specs=[pl.BlockSpec(memory_space=SMEM), pl.BlockSpec(memory_space=pltpu.HBM)],
        out_specs=pl.BlockSpec(memory_space=VMEM),
        out_shape=jax.ShapeDtypeStruct((16, rows), f32),
        scratch_shapes=[
            VMEM((depth, rows, rows), f32),
            pltpu.SemaphoreType.DMA((depth,)),
        ],
    )


def exchange(rounds: int = 3, drain: bool = True) -> Subject:
    """Adds up all cores' rows, `rounds` times, one remote copy to every peer a round."""
    mesh = compile_mesh(SMALL)
    count = mesh.size

    def kernel(x, out, mine, theirs, send, receive):
        me = lax.axis_index("tp")
        barrier = pltpu.get_barrier_semaphore()
        for peer in range(1, count):
            pl.semaphore_signal(barrier, 1, device_id=(me ^ peer,))
        pl.semaphore_wait(barrier, count - 1)
        out[...] = x[...]

        def copy(peer):
            return pltpu.make_async_remote_copy(
                mine, theirs.at[peer], send, receive, device_id=(me ^ peer,)
            )

        @pl.loop(0, rounds)
        def _(i):
            with jax.named_scope("exchange"):
                mine[...] = out[...]
                for peer in range(1, count):
                    copy(peer).start()
                for peer in range(1, count if drain else count - 1):
                    copy(peer).wait()
                out[...] += theirs[1]

    function = pl.pallas_call(
        kernel,
        name="exchange",
        out_shape=jax.ShapeDtypeStruct((8, 128), f32),
        scratch_shapes=[
            VMEM((8, 128), f32),
            VMEM((count, 8, 128), f32),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0, has_side_effects=True),
    )
    spread = PartitionSpec("tp")
    mapped = jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False)
    )
    argument = jax.ShapeDtypeStruct((8 * count, 128), f32, sharding=NamedSharding(mesh, spread))
    return Subject("exchange", mapped, (argument,), mesh)


def oversized(space: str) -> Subject:
    """Asks for more of a memory space than a core has."""
    scratch = {
        "vmem": VMEM((80 * 2**11, 128), f32),
        "scoped": VMEM((40 * 2**11, 128), f32),
        "smem": SMEM((300_000,), i32),
        "sflag": pltpu.SemaphoreType.DMA((5000,)),
    }.get(space, VMEM((8, 128), f32))
    limit = {"vmem": 64 * 2**20}.get(space)

    def kernel(x, out, big):
        if space in ("vmem", "scoped"):
            big[pl.ds(x.shape[0], 8), :] = x[...]
            out[...] = big[0:8, :] + big[pl.ds(8, 8), :]
        else:
            if space == "smem":
                big[3] = 1
            out[...] = x[...] + (big[3].astype(f32) if space == "smem" else 0.0)

    subject = _call(
        "oversized",
        kernel,
        [((8, 128), f32)],
        out_shape=jax.ShapeDtypeStruct((8, 128), f32),
        scratch_shapes=[scratch],
        parameters={"vmem_limit_bytes": limit},
    )
    if space == "hbm":
        where = subject.arguments[0].sharding
        huge = jax.ShapeDtypeStruct((30 * 2**30,), f32, sharding=where)
        return Subject("oversized", lambda x: x * 2 + 1, (huge,), subject.mesh)
    table = (Buffer("big", space, 80 * 2**20),)
    return Subject(subject.name, subject.function, subject.arguments, subject.mesh, buffers=table)


def unlowerable() -> Subject:
    """Uses an operation that Mosaic does not have."""

    def kernel(x, out):
        out[...] = jnp.sort(x[...], axis=-1)

    return _call(
        "unlowerable", kernel, [((8, 128), f32)], out_shape=jax.ShapeDtypeStruct((8, 128), f32)
    )


def leaky_exchange() -> Subject:
    """`exchange` without the last wait of each round."""
    return exchange(drain=False)


def wrong_topology() -> Subject:
    """Asks for a chip that this package does not compile for."""
    return Subject("wrong", lambda: None, (), compile_mesh("tpu6e:2x2"))
