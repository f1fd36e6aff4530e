"""What the two kernels of a drafted step cost, each timed alone in a loop on the device."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kimi.decoding.schedule import CostTable
from kimi.kernels.chip import SUBLANES
from kimi.runtime.calls import Calls
from kimi.runtime.decoder import KernelDecoder
from kimi.runtime.model import WHOLE, ModelWeights
from kimi.runtime.state import DecodeState, state_specs


@dataclass(frozen=True)
class _Loop:
    """The traced side: everything on one rank."""

    calls: Calls
    count: int

    def draft(self, weights: ModelWeights, state: DecodeState) -> DecodeState:
        """Drafts again and again at the same place, each time behind another token."""

        def body(_: Array, state: DecodeState) -> DecodeState:
            state, proposal = self.calls.draft(weights, state)
            return replace(state, tokens=proposal.tokens[:1])

        return lax.fori_loop(0, self.count, body, state)

    def verify(
        self, weights: ModelWeights, state: DecodeState, rows: Array, live: Array
    ) -> tuple[DecodeState, Array]:
        """Verifies rows [block] int32, `live` of them, again and again at the same place."""
        lengths = state.lengths

        def body(_: Array, carry: tuple[DecodeState, Array]) -> tuple[DecodeState, Array]:
            state, found = self.calls.verify(weights, carry[0], rows, live)
            return replace(state, lengths=lengths), found.best

        nothing = jnp.zeros(SUBLANES, jnp.int32)
        return lax.fori_loop(0, self.count, body, (state, nothing))


def measure_costs(
    decoder: KernelDecoder, tokens: Sequence[int], widths: Sequence[int], repeats: int = 5
) -> CostTable:
    """Times this machine: milliseconds of a draft and of verifying each number of rows.

    Args:
      decoder: of a model with a drafter; a loop is as long as its calls.
      tokens: what stands before the step, and the rows that are verified: different ones, as equal
        rows would share experts.
      widths: numbers of rows, 1 among them, up to the block.
      repeats: the median of so many loops, after one that compiles.

    Raises:
      InputError: no drafter.
    """
    programs, model = decoder.blocks, decoder.model
    loop, specs = _Loop(programs.calls, decoder.steps), state_specs(drafts=True)
    draft = model.over_ranks(loop.draft, specs, 0, specs)
    verify = model.over_ranks(loop.verify, specs, 2, (specs, WHOLE))
    before = np.asarray(tokens, np.int32)[: decoder.capacity - 2 * SUBLANES]
    rows = jnp.asarray(np.resize(before[-programs.block :], programs.block))
    state = programs.feed(programs.empty(), before)

    def draft_once(state: DecodeState) -> DecodeState:
        found: DecodeState = draft(model.arrays, state)
        return found

    def verify_once(state: DecodeState, live: Array) -> DecodeState:
        found: tuple[DecodeState, Array] = verify(model.arrays, state, rows, live)
        return found[0]

    costs = {}
    for width in sorted(widths):
        live = jnp.int32(width)
        state, costs[width] = _median_ms(
            lambda s, live=live: verify_once(s, live),  # type: ignore[misc]
            state, decoder.steps, repeats,
        )  # fmt: skip
    # Last, so that the drafter's context takes up the rows of a block, as in a step.
    state, cost = _median_ms(draft_once, state, decoder.steps, repeats)
    return CostTable(cost, costs)


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
