"""Logits of given ids with the kernel, for comparison with other implementations."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from kimi.kernels.chip import SUBLANES
from kimi.kernels.plan import Plan, default_settings
from kimi.runtime.calls import Target
from kimi.runtime.model import SPLIT, DeviceModel, ModelWeights
from kimi.runtime.state import DecodeState, empty_state, state_specs


class Scorer:
    """Runs ids in blocks of eight rows, as verification does.

    Args:
      model: placed.
      capacity: the most ids.

    Raises:
      PlanError: the model or the capacity cannot be served.
    """

    def __init__(self, model: DeviceModel, capacity: int):
        self._model = model
        self._plan = Plan(model.layout, default_settings(model.layout, SUBLANES, capacity))
        target, specs = Target(self._plan, model.interpreted), state_specs(drafts=False)

        def block(
            weights: ModelWeights, state: DecodeState, tokens: Array, live: Array
        ) -> tuple[DecodeState, Array]:
            state, rows = target(weights, state, tokens, live)
            return state, rows.logits[None]

        self._run = model.over_ranks(block, specs, 2, (specs, SPLIT))

    def __call__(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits behind each of the ids, float32 [T, vocab]; T at most the capacity."""
        state, found = empty_state(self._model, self._plan, None), []
        for start in range(0, len(ids), SUBLANES):
            part = ids[start : start + SUBLANES]
            tokens = np.zeros(SUBLANES, np.int32)
            tokens[: len(part)] = part
            live = jnp.int32(len(part))
            state, logits = self._run(self._model.arrays, state, jnp.asarray(tokens), live)
            shares = np.asarray(jax.device_get(logits))[:, : len(part)]
            found.append(np.concatenate(list(shares), -1))
        return np.concatenate(found)
