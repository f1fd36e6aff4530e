"""The draft kernel: one Pallas call for a whole step. See the package for its arguments."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.collectives import barrier
from kimi.kernels.context import Tiles, code_by_name, run_phases
from kimi.kernels.draft import phases
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.draft.program import frame, layers, proposal
from kimi.kernels.draft.running import INPUTS, DraftKernel, DraftLayer, DraftStep
from kimi.kernels.errors import PlanError
from kimi.kernels.launch import Interpret, kernel_call

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
    layout, ring = k.plan.layout, k.plan.settings.ring_tiles
    begin, *loaded = phases.PROLOGUE
    run_phases(FRAME, [begin], k)
    if with_barrier:
        barrier(k)
    run_phases(FRAME, loaded, k)
    count = layout.layer_stream.tiles

    def body(index: Array, slot: Array) -> Array:
        tiles = Tiles(layout.layer_stream, layout.layer_tile + index * count, slot, False)
        run_phases(LAYER, phases.LAYER, k, DraftLayer(k, index, tiles))
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
    results = {
        "cache": shape(plan.cache.shape, jnp.uint32),
        "tokens": shape((SUBLANES, LANES), jnp.int32),
        "confidence": shape((SUBLANES, LANES), jnp.float32),
    }
    call = kernel_call("draft", DraftKernel, run, plan, INPUTS, results, COLLECTIVE_ID, interpret)
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


def step_input(anchor: int, length: int, num_accepted: int) -> npt.NDArray[np.int32]:
    """The numbers of a step, see the package.

    Raises:
      PlanError: more rows than a step can have.
    """
    if not 0 <= num_accepted <= SUBLANES:
        raise PlanError(f"draft: num_accepted: expected 0 to {SUBLANES}, found {num_accepted}")
    numbers = np.array([anchor, length, num_accepted], np.int32)
    assert numbers.shape == (DraftStep.SIZE,)
    return numbers
