"""The whole decode kernel at the published size, for the compiler: shapes only, no weights."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from kimi.aot.compile import Buffer, Subject
from kimi.aot.topology import compile_mesh
from kimi.kernels import megakernel
from kimi.kernels.collectives import AXIS
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import default_mesh
from kimi.kernels.plan import Plan, default_settings
from kimi.kernels.refs import StepInput, state_shapes, weight_shapes
from tests.unit.kernels.build import published


def decode(rows: int = 1, sequences: int = 1, context: int = 8192) -> Subject:
    """One step on 32 ranks."""
    layout = Layout(published(), default_mesh(published(), 32))
    plan = Plan(layout, default_settings(layout, rows, context, sequences))
    mesh = compile_mesh(axes=(AXIS,))
    kernel = megakernel.build(plan)
    shared, split = PartitionSpec(), PartitionSpec(AXIS)

    def one_rank(step: jax.Array, *own: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(x[None] for x in kernel(step, *(a[0] for a in own)))

    mapped = jax.shard_map(
        one_rank, mesh=mesh, in_specs=(shared, *[split] * 6), out_specs=split, check_vma=False
    )
    shapes = [*weight_shapes(layout).values(), *state_shapes(plan).values()]
    arguments = [
        jax.ShapeDtypeStruct((layout.mesh.ranks, *s), d, sharding=NamedSharding(mesh, split))
        for s, d in shapes
    ]
    numbers = jax.ShapeDtypeStruct(
        (StepInput.SIZE,), jnp.int32, sharding=NamedSharding(mesh, shared)
    )
    table = tuple(Buffer(s.name, s.space.value, s.nbytes) for s in plan.storages)
    function = jax.jit(mapped, donate_argnums=(5, 6))
    return Subject("decode", function, (numbers, *arguments), mesh, buffers=table)
