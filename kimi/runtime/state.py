"""What sequences carry from one compiled call to the next, on devices."""

from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.tree_util import GetAttrKey

from kimi.errors import InputError
from kimi.kernels.chip import SUBLANES
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.plan import Plan
from kimi.kernels.refs import state_shapes
from kimi.runtime.model import SPLIT, WHOLE, DeviceModel


class Arrays:
    """Base of dataclasses of arrays: shows shapes and dtypes, as values would fill pages."""

    def __repr__(self) -> str:
        parts = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if hasattr(value, "shape") and hasattr(value, "dtype"):
                value = f"{value.dtype}{list(value.shape)}"
            parts.append(f"{field.name}={value}")
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, repr=False)
class DecodeState(Arrays):
    """The state of S sequences. A call donates it: use the state that comes back.

    One that has been used up is refused wherever jax takes it: by a compiled function of this
    library, by the caller's own, by `jax.tree.map`.

    Attributes:
      kda: float32 [ranks, KDA layers, rows, 128], see `records.KdaRecord`.
      cache: uint32 [ranks, MLA layers, S, blocks, words, 128], see `records.LatentCache`.
      context: uint32 [ranks, layers, blocks, words, 128], the drafter's, see `draft.cache`; None
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


_FIELDS = tuple(field.name for field in fields(DecodeState))


def _values(state: DecodeState) -> tuple[tuple[Any, ...], None]:
    _require_usable(state)
    return tuple(getattr(state, name) for name in _FIELDS), None


def _named_values(state: DecodeState) -> tuple[tuple[tuple[GetAttrKey, Any], ...], None]:
    return tuple((GetAttrKey(n), v) for n, v in zip(_FIELDS, _values(state)[0], strict=True)), None


jax.tree_util.register_pytree_with_keys(
    DecodeState, _named_values, lambda _, values: DecodeState(*values), _values
)


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
        context = array((ranks, *draft.cache.shape), jnp.uint32)
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


def _require_usable(state: DecodeState) -> None:
    """Raises InputError for a state that an earlier call has used up; traced ones pass."""
    for name in _FIELDS:
        array = getattr(state, name)
        if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
            if not array.is_deleted():
                continue
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
