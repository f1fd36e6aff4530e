"""Logits of given ids with the kernel, for comparison with other implementations."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from kimi.kernels.chip import SUBLANES
from kimi.kernels.plan import Plan, default_settings
from kimi.runtime.calls import Calls
from kimi.runtime.model import SPLIT, DeviceModel
from kimi.runtime.state import DecodeState, empty_state, state_specs


def logits_of(model: DeviceModel, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """The logits behind each of the ids, float32 [T, vocab].

    Runs blocks of eight rows, as verification does.

    Raises:
      PlanError: the model or the number of ids cannot be served.
    """
    plan = Plan(model.layout, default_settings(model.layout, SUBLANES, len(ids)))
    calls, specs = Calls(plan, None, model.interpreted), state_specs(drafts=False)

    def block(
        weights: tuple[Array, ...], state: DecodeState, tokens: Array, live: Array
    ) -> tuple[DecodeState, Array]:
        state, rows = calls.target(weights, state, tokens, live)
        return state, rows.logits[None]

    run = model.over_ranks(block, specs, 2, (specs, SPLIT))
    state, found = empty_state(model, plan, None), []
    for start in range(0, len(ids), SUBLANES):
        part = ids[start : start + SUBLANES]
        tokens = np.zeros(SUBLANES, np.int32)
        tokens[: len(part)] = part
        state, logits = run(model.arrays, state, jnp.asarray(tokens), jnp.int32(len(part)))
        shares = np.asarray(jax.device_get(logits))[:, : len(part)]
        found.append(np.concatenate(list(shares), -1))
    return np.concatenate(found)
