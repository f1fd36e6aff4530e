"""What sequences carry from one compiled call to the next."""

from dataclasses import dataclass, fields
from typing import Any

import jax
from jax import Array
from jax.tree_util import GetAttrKey

from kimi.decoding.requests import Arrays
from kimi.errors import InputError


@dataclass(frozen=True, repr=False)
class DecodeState(Arrays):
    """The state of B sequences. A call donates it: use the state that comes back.

    A state that has been donated is refused wherever jax takes it: by a compiled function of this
    library, by the caller's own, by `jax.tree.map`.

    Attributes:
      caches: a tree of arrays of the backend's own: recurrent states, KV caches of target and
        drafter (`decoding.reference.ReferenceCaches`, `runtime.state.KernelCaches`).
      tokens: int32 [B], each sequence's newest token, which the target has not seen.
      lengths: int32 [B], tokens that the target has seen before the rows of the last step.
      accepted: int32 [B], rows of the last step that count. A backend rolls back lazily: the next
        step reads them again from its own record; 0 where rows count at once.
      stopped: bool [B], whether the newest token is a stop id that ended the sequence.
    """

    caches: Any
    tokens: Array
    lengths: Array
    accepted: Array
    stopped: Array

    @property
    def positions(self) -> Array:
        """int32 [B], the position of each newest token."""
        return self.lengths + self.accepted


_FIELDS = tuple(field.name for field in fields(DecodeState))


def _values(state: DecodeState) -> tuple[tuple[Any, ...], None]:
    _require_usable(state)
    return tuple(getattr(state, name) for name in _FIELDS), None


def _named_values(state: DecodeState) -> tuple[tuple[tuple[GetAttrKey, Any], ...], None]:
    return tuple((GetAttrKey(n), v) for n, v in zip(_FIELDS, _values(state)[0], strict=True)), None


jax.tree_util.register_pytree_with_keys(
    DecodeState, _named_values, lambda _, values: DecodeState(*values), _values
)


def _require_usable(state: DecodeState) -> None:
    """Raises InputError for a state that an earlier call was given; traced ones pass."""
    for array in jax.tree.leaves([getattr(state, name) for name in _FIELDS]):
        if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
            if not array.is_deleted():
                continue
            raise InputError(
                "state: expected the newest one, found one that an earlier call was given (calls "
                "donate it): go on with what that call returned; if it was interrupted, start from "
                "the prompt again"
            )
