"""One sequence in blocks, on the device: prompt, then steps of draft, verify, accept, roll back.

A step drafts a block, verifies as many of its rows as the costs say, keeps those that the target
agrees with, and emits them and one token more. Nothing is copied back to roll back: the next step
replays the rows that were kept. Steps follow each other in one program, without the host.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kimi.decoding.acceptance import accept_greedy, accept_sampled
from kimi.decoding.sampling import distribution
from kimi.kernels.chip import SUBLANES
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.draft.plan import default_settings as draft_settings
from kimi.kernels.plan import Plan, default_settings
from kimi.prefill.chunks import chunk_sizes, chunks
from kimi.prefill.layer import Span
from kimi.prefill.prompt import Caches, Prompt
from kimi.runtime.calls import Calls, key_of
from kimi.runtime.model import WHOLE, DeviceModel, ModelWeights, require_drafter
from kimi.runtime.state import Arrays, DecodeState, empty_state, placed, state_specs

STOP_IDS = 16  # most ids that may end a generation


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Request(Arrays):
    """What a call of steps is asked for. All of it is traced: no value compiles anything anew.

    Attributes:
      left: int32 [], tokens to emit at most.
      stop_ids: int32 [STOP_IDS], ids that end the sequence; -1 where there is none.
      costs: float32 [9], entry r is the time of verifying r rows, infinite for numbers of rows that
        may not be chosen; entry 0 the time of a draft. Any unit.
      temperature, top_p: float32 [], of a sampling program.
      top_k: int32 [], likewise; 0 keeps all tokens.
      seed: int32 [].
      forced: float32 [], tokens per step to pretend, for timing only; see `forced_accepted`. 0 lets
        the target decide.
      before: int32 [], steps of the sequence before this call.
    """

    left: Array
    stop_ids: Array
    costs: Array
    temperature: Array
    top_p: Array
    top_k: Array
    seed: Array
    forced: Array
    before: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Steps(Arrays):
    """What the steps of a call did; N is steps per call, rows behind `count` mean nothing.

    Attributes:
      count: int32 [], steps that ran: fewer than N if the sequence ended.
      tokens: int32 [N, 8], emitted, the first `emitted` of each step.
      emitted, rows, accepted: int32 [N]: tokens emitted, rows verified, drafts accepted.
      confidence: float32 [N, 8] of the drafted block.
      finite: bool [], whether all logits were numbers.
      stopped: bool [], whether a stop id ended the sequence.
      finished: bool [], whether the request is done: `stopped`, or all its tokens are emitted.
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


def no_steps(count: int) -> Steps:
    """Nothing done yet, of `count` steps."""
    zeros = jnp.zeros(count, jnp.int32)
    block = (count, SUBLANES)
    return Steps(
        jnp.zeros((), jnp.int32), jnp.zeros(block, jnp.int32), zeros, zeros, zeros,
        jnp.zeros(block, jnp.float32), jnp.bool_(True), jnp.bool_(False),
        jnp.bool_(False),
    )  # fmt: skip


def best_rows(confidence: Array, costs: Array) -> Array:
    """How many rows to verify, as `decoding.schedule.Adaptive` chooses; fewer win a tie.

    Args:
      confidence: float32 [8] of a drafted block.
      costs: see `Request`.

    Returns: int32 [], 1 to 8.
    """
    survival = jnp.cumprod(confidence)[: SUBLANES - 1]
    expected = 1 + jnp.concatenate([jnp.zeros(1), jnp.cumsum(survival)])
    return (jnp.argmax(expected / (costs[0] + costs[1:])) + 1).astype(jnp.int32)


def forced_accepted(step: Array, length: Array, live: Array) -> Array:
    """Drafts to accept so that steps yield `length` tokens on average, whatever the target says.

    Args:
      step: int32 [], counted from the sequence's first.
      length: float32 [], tokens per step.
      live: int32 [], rows verified.

    Returns: int32 [], 0 to live - 1.
    """
    tokens = jnp.floor((step + 1) * length) - jnp.floor(step * length)
    return jnp.clip(tokens.astype(jnp.int32), 1, live) - 1


class _Emitted(NamedTuple):
    tokens: Array
    number: Array
    stopped: Array


def emit(drafted: Array, accepted: Array, following: Array, request: Request) -> _Emitted:
    """Accepted drafts and the token behind them, up to the first stop id and what is left.

    Args:
      drafted: int32 [R - 1].
      accepted, following: int32 [].

    Returns: int32 [8] tokens, how many of them, and whether a stop id is the last.
    """
    place = jnp.arange(SUBLANES)
    tokens = jnp.pad(drafted, (0, SUBLANES - drafted.shape[0]))
    tokens = jnp.where(place < accepted, tokens, jnp.where(place == accepted, following, 0))
    count = jnp.minimum(accepted + 1, request.left)
    stops = (tokens[:, None] == request.stop_ids[None]).any(1) & (place < count)
    count = jnp.where(stops.any(), jnp.argmax(stops) + 1, count)
    return _Emitted(tokens, count.astype(jnp.int32), stops.any())


@dataclass(frozen=True)
class _Loop:
    """The traced side: everything on one rank."""

    calls: Calls
    greedy: bool
    singles: bool
    steps: int
    block: int

    def run(
        self, weights: ModelWeights, state: DecodeState, request: Request
    ) -> tuple[DecodeState, Steps]:
        """Steps until the sequence ends or the call has made all of its own."""

        def more(carry: tuple[DecodeState, Request, Steps]) -> Array:
            _, request, steps = carry
            return (steps.count < self.steps) & (request.left > 0) & ~steps.stopped

        def body(
            carry: tuple[DecodeState, Request, Steps],
        ) -> tuple[DecodeState, Request, Steps]:
            return self._step(weights, *carry)

        state, request, steps = lax.while_loop(more, body, (state, request, no_steps(self.steps)))
        return state, replace(steps, finished=steps.stopped | (request.left <= 0))

    def _step(
        self, weights: ModelWeights, state: DecodeState, request: Request, steps: Steps
    ) -> tuple[DecodeState, Request, Steps]:
        state, proposal = self.calls.draft(weights, state)
        live = best_rows(proposal.confidence, request.costs)
        drafted = proposal.tokens[: self.block - 1]
        position = state.lengths[0] + state.kept
        rows = jnp.concatenate([state.tokens, drafted])
        target = self.calls.verify if self.singles else self.calls.target
        state, found = target(weights, state, rows, live)
        if self.greedy:
            accepted, following = accept_greedy(found.best[: self.block], drafted, live)
            pretended = forced_accepted(request.before + steps.count, request.forced, live)
            forced = request.forced > 0
            accepted = jnp.where(forced, pretended, accepted)
            following = jnp.where(forced, found.best[pretended], following)
        else:
            logits = self.calls.whole_logits(found)[: self.block]
            p = distribution(logits, request.temperature, request.top_p, request.top_k)
            key = key_of(request.seed, position)
            accepted, following = accept_sampled(key, p, drafted, live)
        emitted = emit(drafted, accepted, following, request)
        newest = emitted.tokens[emitted.number - 1]
        state = replace(state, tokens=newest[None], kept=emitted.number)
        i = steps.count
        steps = Steps(
            count=i + 1,
            tokens=steps.tokens.at[i].set(emitted.tokens),
            emitted=steps.emitted.at[i].set(emitted.number),
            rows=steps.rows.at[i].set(live),
            accepted=steps.accepted.at[i].set(accepted),
            confidence=steps.confidence.at[i].set(proposal.confidence),
            finite=steps.finite & jnp.all(found.finite | (jnp.arange(SUBLANES) >= live)),
            stopped=emitted.stopped,
            finished=steps.finished,
        )
        return state, replace(request, left=request.left - emitted.number), steps


class BlockPrograms:
    """The compiled programs of one sequence decoded in drafted blocks of up to 8 rows.

    Args:
      model: placed, with a drafter.
      context: tokens of a sequence at most, prompt included.
      steps: steps per call.

    Attributes:
      plan: of the target's kernel.
      draft: of the drafter's.
      calls: the kernels, on one rank.
      block: rows of a drafted block, the newest token's included.

    Raises:
      InputError: no drafter.
      PlanError: the model, its context or its mesh cannot be served.
    """

    def __init__(self, model: DeviceModel, context: int, steps: int = 8):
        layout = require_drafter(model)
        self.draft = DraftPlan(layout, draft_settings(layout, context))
        self.model, self.steps, self.block = model, steps, layout.config.block_size
        settings = default_settings(model.layout, self.block, context, taps=model.taps)
        self.plan = Plan(model.layout, settings)
        single = default_settings(model.layout, 1, context, taps=model.taps, rollback=True)
        self.calls = Calls(self.plan, self.draft, Plan(model.layout, single), model.interpreted)
        specs = state_specs(drafts=True)
        self._prompt = Prompt(self.plan, self.draft, model.interpreted)
        self._chunks = chunk_sizes(self.plan)
        self._feed = model.over_ranks(self._feed_chunk, specs, 2, specs)
        self._run = {
            (greedy, singles): model.over_ranks(
                _Loop(self.calls, greedy, singles, steps, self.block).run, specs, 1, (specs, WHOLE)
            )
            for greedy in (True, False)
            for singles in (True, False)
        }

    def empty(self) -> DecodeState:
        """The state before the first token."""
        return empty_state(self.model, self.plan, self.draft)

    def feed(self, state: DecodeState, tokens: np.ndarray) -> DecodeState:
        """Consumes tokens [N] int32, all but the last, which becomes the newest. State is donated.

        In chunks (`kimi.prefill`): every size of a chunk is compiled once.
        """
        state = placed(self.model, state)
        for padded, count in chunks(tokens[:-1], self._chunks):
            part = jnp.asarray(padded, jnp.int32)
            state = self.compiled_feed(self.model.arrays, state, part, jnp.int32(count))
        return placed(self.model, replace(state, tokens=jnp.asarray(tokens[-1:], jnp.int32)))

    @property
    def compiled_feed(self) -> Callable[..., DecodeState]:
        """A jitted function of all weights, the state, a padded chunk and how much of it counts."""
        feed: Callable[..., DecodeState] = self._feed
        return feed

    def _feed_chunk(
        self, weights: ModelWeights, state: DecodeState, tokens: Array, count: Array
    ) -> DecodeState:
        """Consumes the first `count` of tokens [T] int32, behind what the state has kept."""
        own: ModelWeights = jax.tree.map(lambda w: w[0], weights)
        assert own.drafter is not None
        assert state.context is not None and state.taps is not None
        caches = Caches(state.kda[0], state.cache[0, :, 0], state.context[0])
        start = state.lengths[0] + state.kept
        found = self._prompt.prefill(
            own.target, own.drafter, caches, state.taps, state.kept, tokens, Span(start, count),
        )  # fmt: skip
        return replace(
            state, kda=found.kda[None], cache=found.cache[None, :, None],
            context=found.context[None], lengths=(start + count)[None],
            kept=jnp.zeros_like(state.kept),
        )  # fmt: skip

    def run(
        self, state: DecodeState, request: Request, greedy: bool, singles: bool
    ) -> tuple[DecodeState, Steps]:
        """Up to `steps` steps; the state is donated.

        Args:
          singles: whether the costs allow a single row, which then has a kernel of its own.

        Raises:
          InputError: the state has been donated before.
        """
        return self.compiled(greedy, singles)(self.model.arrays, state, request)

    def compiled(self, greedy: bool, singles: bool) -> Callable[..., tuple[DecodeState, Steps]]:
        """What `run` calls: a jitted function of all weights, the state and the request."""
        run: Callable[..., tuple[DecodeState, Steps]] = self._run[greedy, singles]
        return run
