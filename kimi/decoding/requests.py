"""What a call of decoding steps is asked for, and what it returns, as trees of arrays.

B is the number of sequences, R the rows of a block (the newest token and the drafts behind it; 1
without a drafter), N the steps of a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import Adaptive, Fixed, Schedule
from kimi.errors import InputError

MAX_SEQUENCES = 8  # of a batch, and most rows of a step over all its sequences
STOP_IDS = 16  # most ids that may end a generation


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Request(Arrays):
    """What a call of steps is asked for. All of it is traced: no value compiles anything anew.

    Attributes:
      left: int32 [B], tokens to emit at most; 0 for a sequence that has ended.
      stop_ids: int32 [B, STOP_IDS], ids that end the sequence; -1 where there is none.
      rows: int32 [], rows to verify of every sequence; 0 chooses by confidence and `costs`.
      costs: float32 [9], entry r is the time of verifying r rows in all, infinite for numbers of
        rows that may not be chosen; entry 0 the time of a draft. Any unit.
      temperature, top_p: float32 [B], of a sampling program; temperature 0 is greedy.
      top_k: int32 [B], likewise; 0 keeps all tokens.
      seeds: int32 [B].
      forced: float32 [], tokens per step to pretend, for timing only; see `loop.forced_accepted`. 0
        lets the target decide.
      before: int32 [], steps of the sequences before this call.
    """

    left: Array
    stop_ids: Array
    rows: Array
    costs: Array
    temperature: Array
    top_p: Array
    top_k: Array
    seeds: Array
    forced: Array
    before: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Steps(Arrays):
    """What the steps of a call did; entries from `count` on mean nothing.

    Attributes:
      count: int32 [], steps that ran: fewer than N if all sequences ended.
      tokens: int32 [N, B, R], emitted, the first `emitted` of each step.
      emitted, rows, accepted: int32 [N, B]: tokens emitted, 0 once the sequence has ended; rows
        verified; drafts accepted.
      confidence: float32 [N, B, R] of the drafted block; 0 without a drafter.
      finite: bool [N, B], whether all logits were numbers.
      stopped: bool [B], whether a stop id ended the sequence.
      finished: bool [B], whether the request is done: `stopped`, or all its tokens are emitted.
    """

    count: Array
    tokens: Array
    emitted: Array
    rows: Array
    accepted: Array
    confidence: Array
    finite: Array
    stopped: Array
    finished: Array


def no_steps(count: int, sequences: int, block: int) -> Steps:
    """Nothing done yet, of `count` steps."""
    each, blocks = (count, sequences), (count, sequences, block)
    return Steps(
        count=jnp.zeros((), jnp.int32),
        tokens=jnp.zeros(blocks, jnp.int32),
        emitted=jnp.zeros(each, jnp.int32),
        rows=jnp.zeros(each, jnp.int32),
        accepted=jnp.zeros(each, jnp.int32),
        confidence=jnp.zeros(blocks, jnp.float32),
        finite=jnp.ones(each, bool),
        stopped=jnp.zeros(sequences, bool),
        finished=jnp.zeros(sequences, bool),
    )


def request(
    left: int | Array,
    stop_ids: frozenset[int],
    schedule: Schedule | None,
    samplings: Sequence[Sampling],
    *,
    before: int | Array = 0,
    forced: float = 0.0,
) -> Request:
    """The request of sequences with the same length, stop ids and schedule.

    Args:
      left: tokens to emit at most, of each.
      stop_ids: at most STOP_IDS.
      schedule: None without drafts.
      samplings: of every sequence.
      before, forced: see `Request`.
    """
    count = len(samplings)
    stops = np.full((count, STOP_IDS), -1, np.int32)
    stops[:, : len(stop_ids)] = sorted(stop_ids)
    rows, costs = _row_choice(schedule)

    def each(values: Sequence[float], dtype: type) -> Array:
        return jnp.asarray(np.array(values, dtype))

    return Request(
        left=jnp.full(count, left, jnp.int32),
        stop_ids=jnp.asarray(stops),
        rows=jnp.int32(rows),
        costs=jnp.asarray(costs),
        temperature=each([s.temperature for s in samplings], np.float32),
        top_p=each([s.top_p for s in samplings], np.float32),
        top_k=each([s.top_k for s in samplings], np.int32),
        seeds=each([s.seed for s in samplings], np.int32),
        forced=jnp.float32(forced),
        before=jnp.int32(before),
    )


def row_counts(schedule: Schedule | None) -> frozenset[int]:
    """The numbers of rows that a schedule may choose for one sequence."""
    if schedule is None:
        return frozenset({1})
    if isinstance(schedule, Fixed):
        return frozenset({schedule.count})
    return frozenset(schedule.costs.rows)


def _row_choice(schedule: Schedule | None) -> tuple[int, np.ndarray]:
    """`Request.rows` and `Request.costs`. Raises InputError for a schedule that is none."""
    costs = np.full(MAX_SEQUENCES + 1, np.inf, np.float32)
    if schedule is None:
        return 1, costs
    if isinstance(schedule, Fixed):
        return schedule.count, costs
    if not isinstance(schedule, Adaptive):
        raise InputError(f"schedule: expected Fixed or Adaptive, found {type(schedule).__name__}")
    costs[0] = schedule.costs.draft
    for rows, cost in schedule.costs.rows.items():
        if rows <= MAX_SEQUENCES:
            costs[rows] = cost
    return 0, costs
