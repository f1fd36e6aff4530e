"""The draft kernel: one Pallas call for a whole step. See the package for its arguments."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.collectives import AXIS, barrier
from kimi.kernels.context import Tiles, code_by_name, run_phases
from kimi.kernels.draft import phases
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.draft.program import frame, layers, proposal
from kimi.kernels.draft.running import INPUTS, OUTPUTS, DraftKernel, DraftLayer, DraftStep
from kimi.kernels.errors import PlanError
from kimi.kernels.refs import Ref, scratch_shapes, split_scratch

Interpret = bool | pltpu.InterpretParams
COLLECTIVE_ID = 1  # of its barrier; the target's kernel has 0


# The code of every phase, under the name by which `phases` orders it.
FRAME = code_by_name(
    frame.begin, frame.embed, frame.fuse, frame.embedded, frame.fused,
    proposal.output_norm, proposal.head, proposal.choose, proposal.results,
)  # fmt: skip
LAYER = code_by_name(
    layers.attention_norm, layers.project, layers.attend, layers.attention_out,
    layers.attention_sum, layers.mlp_norm, layers.mlp_in, layers.mlp_out, layers.mlp_sum,
    layers.layer_join,
)  # fmt: skip


def run(k: DraftKernel, with_barrier: bool) -> None:
    """The whole step."""
    layout, ring = k.plan.layout, k.ring_tiles
    begin, *loaded = phases.PROLOGUE
    run_phases(FRAME, [begin], k)
    if with_barrier and k.mesh.ranks > 1:
        barrier(k)
    run_phases(FRAME, loaded, k)
    count = layout.layer_stream.tiles

    def body(index: Array, slot: Array) -> Array:
        tiles = Tiles(layout.layer_stream, layout.layer_tile + index * count, slot, False)
        run_phases(LAYER, phases.LAYER, DraftLayer(k, index, tiles))
        following = slot + count % ring
        return jnp.where(following >= ring, following - ring, following)

    lax.fori_loop(0, k.config.num_hidden_layers, body, jnp.int32(layout.layer_tile % ring))
    run_phases(FRAME, phases.EPILOGUE, k)


def build(plan: DraftPlan, interpret: Interpret = False) -> Callable[..., tuple[Array, ...]]:
    """The kernel as a function of one rank's arrays, to be called inside `shard_map` over `AXIS`.

    Args:
      plan: of the step.
      interpret: False on TPU; True or `pltpu.InterpretParams` run it without one.

    Returns: the function that the package describes.
    """
    shape = jax.ShapeDtypeStruct

    def body(*refs: Ref) -> None:
        inputs = dict(zip(INPUTS, refs, strict=False))
        context, tokens, confidence = refs[len(INPUTS) : len(INPUTS) + len(OUTPUTS)]
        ws, sems = split_scratch(plan, refs[len(INPUTS) + len(OUTPUTS) :])
        rank = lax.axis_index(AXIS) if plan.layout.mesh.ranks > 1 else 0
        kernel = DraftKernel(plan, inputs, context, tokens, confidence, ws, sems, rank)
        run(kernel, with_barrier=interpret is not True)

    smem, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)
    vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
    call = pl.pallas_call(
        body,
        name="draft",
        out_shape=[
            shape(plan.context.shape, jnp.uint32),
            shape((SUBLANES, LANES), jnp.int32),
            shape((SUBLANES, LANES), jnp.float32),
        ],
        in_specs=[smem, vmem, *[hbm] * (len(INPUTS) - 2)],
        out_specs=[hbm, vmem, vmem],
        scratch_shapes=scratch_shapes(plan),
        input_output_aliases={INPUTS.index("context"): 0},
        interpret=interpret,
        compiler_params=pltpu.CompilerParams(
            collective_id=COLLECTIVE_ID if plan.layout.mesh.ranks > 1 else None,
            vmem_limit_bytes=plan.chip.vmem_bytes,
            has_side_effects=True,
        ),
    )

    frequencies = _frequencies(plan)

    def draft(step: Array, *arrays: Array) -> tuple[Array, ...]:
        return tuple(call(step, jnp.asarray(frequencies), *arrays))

    return draft


def _frequencies(plan: DraftPlan) -> npt.NDArray[np.float32]:
    """Of the rotary embedding, [8, 128]: channel i of a half head on lane i, repeated."""
    c = plan.layout.config
    half = c.head_dim // 2
    own = c.rope_theta ** (-np.arange(half) / half)
    return np.broadcast_to(np.tile(own, LANES // half), (SUBLANES, LANES)).astype(np.float32)


def step_input(anchor: int, length: int, kept: int) -> npt.NDArray[np.int32]:
    """The numbers of a step, see the package.

    Raises:
      PlanError: more rows than a step can have.
    """
    if not 0 <= kept <= SUBLANES:
        raise PlanError(f"draft: kept: expected 0 to {SUBLANES}, found {kept}")
    numbers = np.array([anchor, length, kept], np.int32)
    assert numbers.shape == (DraftStep.SIZE,)
    return numbers
