"""A chunk of a prompt at the published size, for the compiler: shapes only, no weights."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from kimi.aot.compile import Subject
from kimi.aot.topology import compile_mesh
from kimi.kernels.chip import SUBLANES
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.draft.plan import default_settings as draft_settings
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import default_mesh
from kimi.kernels.plan import Plan, default_settings
from kimi.kernels.refs import state_shapes, weight_shapes
from kimi.prefill.layer import Span
from kimi.prefill.program import Weights
from kimi.prefill.prompt import Caches, Prompt
from tests.unit.kernels_draft.build import published_draft

RANKS = 32
DRAFT_ARRAYS = ("dense", "vectors")


def plans(experts: str, context: int) -> tuple[Plan, DraftPlan]:
    """Of the published model and its drafter on 32 ranks."""
    config, target = published_draft()
    layout = Layout(target, default_mesh(target, RANKS), ExpertFormat(experts))
    taps = config.aux_hidden_state_layer_ids
    plan = Plan(layout, default_settings(layout, config.block_size, context, taps=taps))
    drafter = DraftLayout(config, target, layout.mesh)
    return plan, DraftPlan(drafter, draft_settings(drafter, context))


def chunk(tokens: int = 2048, experts: str = "mxfp4", context: int = 131072) -> Subject:
    """A chunk on 32 ranks."""
    plan, draft = plans(experts, context)
    prompt = Prompt(plan, draft, False)
    mesh = compile_mesh(axes=(AXIS,))
    whole, split = PartitionSpec(), PartitionSpec(AXIS)

    def one_rank(numbers, ids, pending, *own):
        own = [a[0] for a in own]
        weights, drafter, (kda, cache, context) = own[:4], own[4:6], own[6:]
        kept, start, count = numbers
        found = prompt.feed(
            Weights(*weights), tuple(drafter), Caches(kda, cache[:, 0], context), pending, kept,
            ids, Span(start, count),
        )  # fmt: skip
        return found.kda[None], found.cache[None, :, None], found.context[None]

    shapes = list(weight_shapes(plan.layout).values())
    small = draft.layout.shapes
    shapes += [(small["dense"], np.uint32), (small["vectors"], np.float32)]
    shapes += [*state_shapes(plan).values(), (draft.context.shape, np.uint32)]
    mapped = jax.shard_map(
        one_rank, mesh=mesh, in_specs=(*[whole] * 3, *[split] * len(shapes)), out_specs=split,
        check_vma=False,
    )  # fmt: skip
    own = [
        jax.ShapeDtypeStruct((RANKS, *s), d, sharding=NamedSharding(mesh, split)) for s, d in shapes
    ]
    taps = (len(plan.settings.taps), SUBLANES, plan.layout.config.hidden_size)
    small_shapes = [((3,), jnp.int32), ((tokens,), jnp.int32), (taps, jnp.float32)]
    common = [
        jax.ShapeDtypeStruct(s, d, sharding=NamedSharding(mesh, whole)) for s, d in small_shapes
    ]
    return Subject(
        "prefill",
        jax.jit(mapped, donate_argnums=(9, 10, 11)),
        (*common, *own),
        mesh,
    )
