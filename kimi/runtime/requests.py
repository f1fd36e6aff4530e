"""From a caller's options to the numbers that compiled programs take."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from kimi.decoding.sampling import Sampling, sampling_arrays
from kimi.decoding.schedule import Adaptive, Fixed, Schedule
from kimi.errors import InputError
from kimi.kernels.chip import SUBLANES
from kimi.runtime.blocks import STOP_IDS, Request


def row_costs(schedule: Schedule, block: int) -> np.ndarray:
    """`blocks.Request.costs` of a schedule, float32 [9].

    Raises:
      InputError: a schedule that the device does not know.
    """
    costs = np.full(SUBLANES + 1, np.inf, np.float32)
    if isinstance(schedule, Fixed):
        costs[0], costs[min(schedule.count, block)] = 0, 1
    elif isinstance(schedule, Adaptive):
        costs[0] = schedule.costs.draft
        for rows, cost in schedule.costs.rows.items():
            if rows <= block:
                costs[rows] = cost
    else:
        raise InputError(f"schedule: expected Fixed or Adaptive, found {type(schedule).__name__}")
    return costs


def allows_singles(costs: np.ndarray) -> bool:
    """Whether a schedule may choose a single row, for which there is a kernel of its own."""
    return bool(np.isfinite(costs[1]))


def drafted_request(
    max_tokens: int | Array, stop_ids: frozenset[int], costs: np.ndarray, sampling: Sampling, *,
    before: int | Array = 0, forced: float = 0.0,
) -> Request:  # fmt: skip
    """A request of drafted steps with at most STOP_IDS stop ids; see `blocks.Request`."""
    return Request(
        jnp.int32(max_tokens), stop_array(stop_ids), jnp.asarray(costs, jnp.float32),
        *sampling_arrays(sampling), jnp.int32(sampling.seed), jnp.float32(forced),
        jnp.int32(before),
    )  # fmt: skip


def stop_array(stop_ids: frozenset[int]) -> Array:
    """int32 [STOP_IDS], -1 where there is none."""
    padded = np.full(STOP_IDS, -1, np.int32)
    padded[: len(stop_ids)] = sorted(stop_ids)
    return jnp.asarray(padded)
