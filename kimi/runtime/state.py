"""What sequences carry from one compiled call to the next, on devices."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from kimi.errors import InputError
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


def state_shapes_of(plan: Plan, draft: DraftPlan | None) -> DecodeState:
    """Shapes and dtypes of the state of `plan.rows.sequences` sequences, as a tree like it."""
    ranks, sequences = plan.layout.mesh.ranks, plan.rows.sequences

    def array(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    kda, cache = (array((ranks, *s), dtype) for s, dtype in state_shapes(plan).values())
    context = taps = None
    if draft is not None:
        context = array((ranks, *draft.context.shape), jnp.uint32)
        width = plan.layout.config.hidden_size
        taps = array((len(plan.settings.taps), SUBLANES, width), jnp.float32)
    count = array((sequences,), jnp.int32)
    return DecodeState(kda, cache, context, taps, count, count, array((), jnp.int32))


def empty_state(model: DeviceModel, plan: Plan, draft: DraftPlan | None) -> DecodeState:
    """Before the first token of `plan.rows.sequences` sequences; made where it lies."""
    shapes = state_shapes_of(plan, draft)

    def zeros() -> DecodeState:
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

    state: DecodeState = jax.jit(zeros, out_shardings=_places(model, draft is not None))()
    return state


def require_usable(state: DecodeState) -> None:
    """Raises InputError for a state that an earlier call has used up; traced ones pass."""
    for array in jax.tree.leaves(state):
        if not isinstance(array, jax.core.Tracer) and array.is_deleted():
            raise InputError(
                "state: expected the newest one, found one that an earlier call was given (calls "
                "donate it): go on with what that call returned; if it was interrupted, start from "
                "the prompt again"
            )


def placed(model: DeviceModel, state: DecodeState) -> DecodeState:
    """The state as compiled programs give it: one that lies otherwise, as small arrays of the host
    do, would compile everything anew."""
    found: DecodeState = jax.device_put(state, _places(model, state.context is not None))
    return found


def _places(model: DeviceModel, drafts: bool) -> DecodeState:
    specs = state_specs(drafts)
    places: DecodeState = jax.tree.map(lambda spec: NamedSharding(model.devices, spec), specs)
    return places
