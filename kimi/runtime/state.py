"""The caches of the kernels, on devices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import NamedSharding

from kimi.decoding.requests import Arrays
from kimi.decoding.state import DecodeState
from kimi.kernels.chip import SUBLANES
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.plan import Plan
from kimi.kernels.refs import state_shapes
from kimi.runtime.model import SPLIT, WHOLE, DeviceModel


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class KernelCaches(Arrays):
    """Caches of B sequences.

    Attributes:
      kda: float32 [ranks, KDA layers, rows, 128], see `records.KdaRecord`.
      cache: uint32 [ranks, MLA layers, B, blocks, words, 128], see `records.LatentCache`.
      draft: uint32 [ranks, layers, blocks, words, 128], the drafter's, see `draft.cache`; None
        without a drafter.
      taps: float32 [taps, 8, D] of the rows of the last step, the same on all ranks; None likewise.
    """

    kda: Array
    cache: Array
    draft: Array | None
    taps: Array | None

    def detach(self) -> tuple["KernelCaches", list[Array]]:
        """The caches without the latents, which later tokens never overwrite; and these."""
        # An array without elements stands for them.
        return replace(self, cache=jnp.zeros((), jnp.uint32)), [self.cache]

    def attach(self, latents: Sequence[Array]) -> "KernelCaches":
        """Reverses `detach`."""
        return replace(self, cache=latents[0])


def state_specs(drafts: bool) -> DecodeState:
    """Partition specs of a state, as a tree like it."""
    drafter = (SPLIT, WHOLE) if drafts else (None, None)
    caches = KernelCaches(SPLIT, SPLIT, *drafter)  # type: ignore[arg-type]
    return DecodeState(caches, WHOLE, WHOLE, WHOLE, WHOLE)  # type: ignore[arg-type]


def state_shapes_of(plan: Plan, draft: DraftPlan | None) -> DecodeState:
    """Shapes and dtypes of the state of `plan.rows.sequences` sequences, as a tree like it."""
    ranks, sequences = plan.layout.mesh.ranks, plan.rows.sequences

    def array(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    kda, cache = (array((ranks, *s), dtype) for s, dtype in state_shapes(plan).values())
    draft_cache = taps = None
    if draft is not None:
        draft_cache = array((ranks, *draft.cache.shape), jnp.uint32)
        width = plan.layout.config.hidden_size
        taps = array((len(plan.settings.taps), SUBLANES, width), jnp.float32)
    count = array((sequences,), jnp.int32)
    caches = KernelCaches(kda, cache, draft_cache, taps)
    return DecodeState(caches, count, count, count, array((sequences,), jnp.bool_))


def empty_state(model: DeviceModel, plan: Plan, draft: DraftPlan | None) -> DecodeState:
    """Before the first token of `plan.rows.sequences` sequences; made where it lies."""
    shapes = state_shapes_of(plan, draft)

    def zeros() -> DecodeState:
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

    state: DecodeState = jax.jit(zeros, out_shardings=_shardings(model, draft is not None))()
    return state


def placed(model: DeviceModel, state: DecodeState) -> DecodeState:
    """The state as compiled programs give it: one that lies otherwise, as small arrays of the host
    do, would compile everything again."""
    found: DecodeState = jax.device_put(state, _shardings(model, state.caches.draft is not None))
    return found


def _shardings(model: DeviceModel, drafts: bool) -> DecodeState:
    specs = state_specs(drafts)
    shardings: DecodeState = jax.tree.map(lambda s: NamedSharding(model.devices, s), specs)
    return shardings
