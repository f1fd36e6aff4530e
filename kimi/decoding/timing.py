"""What the parts of a drafted step cost, each timed alone in a loop on the device."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax.experimental import multihost_utils

from kimi.decoding.backend import Backend, Decision, Scores
from kimi.decoding.decoder import Decoder
from kimi.decoding.requests import MAX_SEQUENCES
from kimi.decoding.schedule import CostTable
from kimi.decoding.state import DecodeState

WIDTHS = (1, 2, 4, 8)  # rows whose verification is timed for the adaptive schedule


@dataclass(frozen=True)
class _Loop:
    """The traced side.

    Attributes:
      widths: of `Backend.widths`.
      count: turns of a loop.
    """

    backend: Backend
    widths: tuple[int, ...]
    count: int

    def draft(self, weights: Any, state: DecodeState) -> DecodeState:
        """Drafts again and again at the same place, each time behind another token."""

        def body(_: Array, state: DecodeState) -> DecodeState:
            state, proposal = self.backend.draft(weights, state)
            return replace(state, tokens=proposal.tokens[:, 0])

        return lax.fori_loop(0, self.count, body, state)

    def verify(self, weights: Any, state: DecodeState, rows: Array, valid: Array) -> DecodeState:
        """Verifies rows [1, R] int32, `valid` [1] of them, again and again at the same place."""
        lengths = state.lengths

        def all_accepted(scores: Scores) -> Decision:
            newest = scores.best[:, 0]
            return Decision(newest, valid, ())

        def body(turn: Array, state: DecodeState) -> DecodeState:
            del turn
            state, _ = self.backend.verify(weights, state, rows, valid, self.widths, all_accepted)
            return replace(state, lengths=lengths)

        return lax.fori_loop(0, self.count, body, state)


def measure_costs(
    decoder: Decoder, tokens: Sequence[int], widths: Iterable[int] | None = None, repeats: int = 5
) -> CostTable:
    """Times this machine: milliseconds of a draft and of verifying each number of rows.

    The same table on all hosts: the first one's.

    Args:
      decoder: of a model with a drafter; a loop is as long as its calls.
      tokens: what stands before the step, and the rows that are verified: different ones, as equal
        rows would share experts.
      widths: numbers of rows, up to the block; default 1, 2, 4, 8 and the block.
      repeats: the median of so many loops, after one that compiles.

    Raises:
      InputError: no drafter.
    """
    programs = decoder.programs()
    backend, block = programs.backend, programs.backend.block
    counts = sorted(set(widths or {w for w in WIDTHS if w < block} | {block}))
    before = list(tokens)[: decoder.capacity - 2 * MAX_SEQUENCES]
    rows = np.resize(np.array(before[-block:], np.int32), (1, block))
    state = programs.start([before])
    loop, costs = _Loop(backend, backend.widths(frozenset(counts)), decoder.steps), {}
    name = f"{'_'.join(map(str, loop.widths))}_{loop.count}"
    verify = backend.compile(f"time_verify_{name}", loop.verify, 2)
    draft = backend.compile(f"time_draft_{name}", loop.draft, 0)
    for count in counts:
        verify_once = partial(_apply, verify, backend.weights, (rows, np.full(1, count, np.int32)))
        state, costs[count] = _median_ms(verify_once, state, loop.count, repeats)
    # Last, so that the drafter's KV cache takes up the rows of a block, as in a step.
    _, cost = _median_ms(partial(_apply, draft, backend.weights, ()), state, loop.count, repeats)
    return _agreed(CostTable(cost, costs))


def _agreed(costs: CostTable) -> CostTable:
    """The first host's table: hosts that chose by their own clocks would run different steps of one
    program."""
    if jax.process_count() == 1:
        return costs
    own = np.array([costs.draft, *costs.rows.values()], np.float64)
    draft, *rows = map(float, multihost_utils.broadcast_one_to_all(own))
    return CostTable(draft, dict(zip(costs.rows, rows, strict=True)))


def _apply(
    run: Callable[..., DecodeState], weights: Any, more: tuple[Any, ...], state: DecodeState
) -> DecodeState:
    return run(weights, state, *more)


def _median_ms(
    run: Callable[[DecodeState], DecodeState], state: DecodeState, count: int, repeats: int
) -> tuple[DecodeState, float]:
    """The state afterwards, and the median time of a run divided by `count`."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        state = jax.block_until_ready(run(state))
        times.append(time.perf_counter() - start)
    return state, float(np.median(times[1:]) * 1e3 / count)
