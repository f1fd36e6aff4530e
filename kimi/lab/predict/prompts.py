"""A chunk of a prompt at full size, for the compiler: shapes only, no weights."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from kimi.config import DraftConfig, ModelConfig
from kimi.errors import InputError
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.draft.plan import default_settings as draft_settings
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import default_mesh
from kimi.kernels.plan import Plan, default_settings
from kimi.lab.predict.compile import Subject
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.shapes import CACHE_TOKENS, family, model_shapes, state_arrays, whole
from kimi.lab.predict.topology import DEFAULT_TOPOLOGY, device_count
from kimi.prefill.chunks import chunk_sizes
from kimi.prefill.routing import routes
from kimi.runtime.backend import BlockBackend

_SEED = 0


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

    def configs(self) -> tuple[ModelConfig, DraftConfig]:
        """Target and drafter. Raises ConfigError."""
        if self.model:
            target = ModelConfig.from_dir(self.model)
            config = DraftConfig.from_dir(Path(self.model, "dspark"))
        else:
            target, config = ModelConfig.published(), DraftConfig.published()
        config.check_target(target)
        return target, config

    def plans(self) -> tuple[Plan, DraftPlan]:
        """Of the kernels whose weights and caches the chunk uses.

        Raises:
          ConfigError: of the model.
          InputError: of the topology, or a chunk size that prompts are not cut into.
          LayoutError, PlanError: the model does not fit so.
        """
        target, config = self.configs()
        mesh = default_mesh(target, device_count(self.topology))
        layout = Layout(target, mesh, ExpertFormat(self.experts))
        taps = config.aux_hidden_state_layer_ids
        plan = Plan(layout, default_settings(layout, config.block_size, self.context, taps=taps))
        self.check_size(plan)
        drafter = DraftLayout(config, target, mesh)
        return plan, DraftPlan(drafter, draft_settings(drafter, self.context))

    def check_size(self, plan: Plan) -> None:
        """Raises InputError for a size that prompts are not cut into."""
        if self.tokens not in chunk_sizes(plan):
            sizes = ", ".join(map(str, chunk_sizes(plan)))
            raise InputError(
                f"chunk: expected one of {sizes} tokens in a cache of {self.context}, found "
                f"{self.tokens}"
            )


def chunk(**options: object) -> Subject:
    """A chunk on all ranks; keywords are those of `ChunkOptions`.

    Raises:
      KimiError: see `ChunkOptions.plans`.
    """
    chosen = ChunkOptions(**options)  # type: ignore[arg-type]
    model = model_shapes(*chosen.configs(), chosen.experts, chosen.topology)
    backend = BlockBackend(model, chosen.context)
    chosen.check_size(backend.plan)
    tokens, count = whole(model, (chosen.tokens,), jnp.int32), whole(model, (), jnp.int32)
    arguments = model.arrays, state_arrays(backend), count, tokens, count
    run = backend.compile("prefill", backend.prefill, 3)
    return Subject("prefill", run, arguments, model.devices, family=family)


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
