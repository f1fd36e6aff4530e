"""What sequences carry from one compiled call to the next, on devices."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from kimi.kernels.chip import SUBLANES
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.plan import Plan
from kimi.kernels.refs import state_shapes
from kimi.runtime.model import SPLIT, WHOLE, DeviceModel


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """The state of S sequences. A call donates it: use the state that comes back.

    Attributes:
      kda: float32 [ranks, KDA layers, rows, 128], see `records.KdaRecord`.
      cache: uint32 [ranks, MLA layers, S, blocks, words, 128], see `records.LatentCache`.
      context: uint32 [ranks, layers, blocks, words, 128], the drafter's, see `draft.context`; None
        without a drafter.
      taps: float32 [taps, 8, D] of the rows of the last step, the same on all ranks; None likewise.
      tokens: int32 [S], each sequence's newest token, which the target has not seen.
      lengths: int32 [S], tokens that the target has seen before the rows of the last step.
      kept: int32 [], rows of the last step that count: a sequence's newest token is at position
        lengths + kept. 0 where rows are no block: these always count at once.
    """

    kda: jax.Array
    cache: jax.Array
    context: jax.Array | None
    taps: jax.Array | None
    tokens: jax.Array
    lengths: jax.Array
    kept: jax.Array


# How each field lies on the ranks.
def state_specs(drafts: bool) -> DecodeState:
    """Partition specs of a state, as a tree like it."""
    context, taps = (SPLIT, WHOLE) if drafts else (None, None)
    return DecodeState(SPLIT, SPLIT, context, taps, WHOLE, WHOLE, WHOLE)  # type: ignore[arg-type]


def empty_state(model: DeviceModel, plan: Plan, draft: DraftPlan | None) -> DecodeState:
    """Before the first token of `plan.rows.sequences` sequences."""
    ranks, sequences = plan.layout.mesh.ranks, plan.rows.sequences
    kda, cache = (
        model.place(np.zeros((ranks, *shape), dtype))
        for shape, dtype in state_shapes(plan).values()
    )
    context = taps = None
    if draft is not None:
        context = model.place(np.zeros((ranks, *draft.context.shape), np.uint32))
        width = plan.layout.config.hidden_size
        taps = jnp.zeros((len(plan.settings.taps), SUBLANES, width), jnp.float32)
    zeros = jnp.zeros(sequences, jnp.int32)
    return DecodeState(kda, cache, context, taps, zeros, zeros.copy(), jnp.zeros((), jnp.int32))
