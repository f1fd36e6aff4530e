"""A chunk of a prompt at full size, for the compiler: shapes only, no weights."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from kimi.aot.compile import Subject
from kimi.aot.machine import KernelInputs
from kimi.aot.topology import DEFAULT_TOPOLOGY, compile_mesh, device_count
from kimi.config import DraftConfig, ModelConfig
from kimi.errors import InputError
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
from kimi.prefill.chunks import chunk_sizes
from kimi.prefill.layer import Span
from kimi.prefill.program import Weights
from kimi.prefill.prompt import Caches, Prompt
from kimi.prefill.routing import routes

CACHE_TOKENS = 131072
_SEED = 0
# What the report calls the arguments, in their order.
_SMALL = ("numbers", "tokens", "taps")
_DRAFT = ("dense", "vectors")
_STATES = ("KDA states", "MLA cache", "drafter's context")


@dataclass(frozen=True)
class ChunkOptions:
    """Which chunk of which model, where.

    Attributes:
      tokens: of the chunk.
      experts: `mxfp4` or `fp8`.
      context: tokens that the cache has room for.
      topology: a name that the compiler knows.
      model: folder with a config.json and the drafter's in `dspark`; empty for the published ones.
    """

    tokens: int = 2048
    experts: str = ExpertFormat.MXFP4.value
    context: int = CACHE_TOKENS
    topology: str = DEFAULT_TOPOLOGY
    model: str = ""

    @property
    def title(self) -> str:
        """For reports."""
        model = Path(self.model).name if self.model else "Kimi K3"
        return (
            f"{model}, a chunk of {self.tokens} tokens, cache of {self.context}, "
            f"{self.experts} experts, {self.topology}"
        )

    def plans(self) -> tuple[Plan, DraftPlan]:
        """Of the kernels whose weights and caches the chunk uses.

        Raises:
          ConfigError: of the model.
          InputError: of the topology, or a chunk size that prompts are not cut into.
          LayoutError, PlanError: the model does not fit so.
        """
        if self.model:
            target = ModelConfig.from_dir(self.model)
            config = DraftConfig.from_dir(Path(self.model, "dspark"))
        else:
            target, config = ModelConfig.published(), DraftConfig.published()
        config.check_target(target)
        mesh = default_mesh(target, device_count(self.topology))
        layout = Layout(target, mesh, ExpertFormat(self.experts))
        taps = config.aux_hidden_state_layer_ids
        plan = Plan(layout, default_settings(layout, config.block_size, self.context, taps=taps))
        if self.tokens not in chunk_sizes(plan):
            sizes = ", ".join(map(str, chunk_sizes(plan)))
            raise InputError(
                f"chunk: expected one of {sizes} tokens in a cache of {self.context}, found "
                f"{self.tokens}"
            )
        drafter = DraftLayout(config, target, mesh)
        return plan, DraftPlan(drafter, draft_settings(drafter, self.context))


def chunk(**options: object) -> Subject:
    """A chunk on all ranks; keywords are those of `ChunkOptions`.

    Raises:
      KimiError: see `ChunkOptions.plans`.
    """
    chosen = ChunkOptions(**options)  # type: ignore[arg-type]
    plan, draft = chosen.plans()
    prompt = Prompt(plan, draft, False)
    mesh = compile_mesh(chosen.topology, axes=(AXIS,))
    whole, split = PartitionSpec(), PartitionSpec(AXIS)

    def one_rank(
        numbers: jax.Array, ids: jax.Array, pending: jax.Array, *arrays: jax.Array
    ) -> tuple[jax.Array, ...]:
        own = [a[0] for a in arrays]
        kda, cache, context = own[6:]
        kept, start, count = numbers
        found = prompt.feed(
            Weights(*own[:4]), (own[4], own[5]), Caches(kda, cache[:, 0], context), pending, kept,
            ids, Span(start, count),
        )  # fmt: skip
        return found.kda[None], found.cache[None, :, None], found.context[None]

    weights = weight_shapes(plan.layout)
    drafter = [
        (draft.layout.shapes[n], t) for n, t in zip(_DRAFT, (np.uint32, np.float32), strict=True)
    ]
    states = [*state_shapes(plan).values(), (draft.context.shape, np.uint32)]
    shapes = [*weights.values(), *drafter, *states]
    taps = (len(plan.settings.taps), SUBLANES, plan.layout.config.hidden_size)
    small = [((3,), jnp.int32), ((chosen.tokens,), jnp.int32), (taps, jnp.float32)]
    names = (*_SMALL, *weights, *(f"drafter's {n}" for n in _DRAFT), *_STATES)
    mapped = jax.shard_map(
        one_rank, mesh=mesh, in_specs=(*[whole] * len(small), *[split] * len(shapes)),
        out_specs=split, check_vma=False,
    )  # fmt: skip
    own, common = NamedSharding(mesh, split), NamedSharding(mesh, whole)
    return Subject(
        "prefill",
        jax.jit(mapped, donate_argnums=[names.index(state) for state in _STATES]),
        (
            *(jax.ShapeDtypeStruct(s, d, sharding=common) for s, d in small),
            *(jax.ShapeDtypeStruct((mesh.size, *s), d, sharding=own) for s, d in shapes),
        ),
        mesh,
        family=lambda path: names[int(path.strip("[]"))],
    )


def expert_inputs(plan: Plan, tokens: int) -> KernelInputs:
    """What the kernel of the experts reads of its scalar operands, in their order.

    Every token chooses experts at random; the rank is one of the group that more of them chose.
    """
    mesh, c = plan.layout.mesh, plan.layout.config
    rng = np.random.default_rng(_SEED)
    ids = rng.permuted(np.tile(np.arange(c.num_experts), (tokens, 1)), axis=1)
    ids = ids[:, : c.num_experts_per_token]
    group = np.bincount(mesh.owner(ids).reshape(-1)).argmax()
    count = plan.layout.local_experts
    local = np.where(mesh.owner(ids) == group, mesh.local_expert(ids), count).astype(np.int32)
    weights = jnp.ones(local.shape, jnp.float32)
    found = jax.jit(routes, static_argnums=2)(jnp.asarray(local), weights, count)
    # The weights of the pairs are floats, of no use to the simulator.
    words = [
        np.asarray(x).reshape(-1).tolist()
        for x in (found.tiles, found.tokens, (), found.expert, found.first, found.rows)
    ]
    return KernelInputs(operands=dict(enumerate([*words, [0]])))
