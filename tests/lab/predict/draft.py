"""The whole draft kernel at the published size, for the compiler: shapes only, no weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from kimi.kernels.chip import SUBLANES
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft import kernel
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.draft.plan import DraftPlan, default_settings
from kimi.kernels.draft.running import DraftStep
from kimi.kernels.mesh import Mesh
from kimi.lab.predict.compile import Buffer, Subject
from kimi.lab.predict.topology import compile_mesh
from tests.unit.kernels_draft.build import published_draft

RANKS = 32


def draft(ring_tiles: int = 0, tile_rows: int = 0) -> Subject:
    """One step on 32 ranks; 0 for the default settings."""
    config, target = published_draft()
    layout = DraftLayout(config, target, Mesh(RANKS), tile_rows)
    settings = default_settings(layout)
    if ring_tiles:
        settings = dataclasses.replace(settings, ring_tiles=ring_tiles)
    plan = DraftPlan(layout, settings)
    mesh = compile_mesh(axes=(AXIS,))
    built = kernel.build(plan)
    whole, split = PartitionSpec(), PartitionSpec(AXIS)

    def one_rank(step: jax.Array, *own: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(x[None] for x in built(step, *(a[0] for a in own)))

    mapped = jax.shard_map(
        one_rank, mesh=mesh, in_specs=(whole, *[split] * 7), out_specs=split, check_vma=False
    )
    taps = (len(config.aux_hidden_state_layer_ids), SUBLANES, config.hidden_size)
    floats = ("vectors",)
    weights = [
        (s, np.float32 if name in floats else np.uint32) for name, s in layout.shapes.items()
    ]
    shapes = [(taps, np.float32), *weights, (plan.cache.shape, np.uint32)]
    arguments = [
        jax.ShapeDtypeStruct((RANKS, *s), d, sharding=NamedSharding(mesh, split)) for s, d in shapes
    ]
    numbers = jax.ShapeDtypeStruct(
        (DraftStep.SIZE,), jnp.int32, sharding=NamedSharding(mesh, whole)
    )
    table = tuple(Buffer(s.name, s.space.value, s.nbytes) for s in plan.storages)
    function = jax.jit(mapped, donate_argnums=(7,))
    return Subject("draft", function, (numbers, *arguments), mesh, buffers=table)
