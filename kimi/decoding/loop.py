"""The decoding loop, on the device: draft, choose rows, verify, accept, emit, for any backend.

The newest token of a sequence is always still unseen by the target: a step feeds it together with
the drafts, keeps those that the target agrees with, and emits them and one token more. Without a
drafter, or with one row, a step is plain decoding by the same code. Steps follow each other in one
program, without the host. Letters of shapes as in `decoding.requests`.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from kimi.decoding.acceptance import accept_greedy, accept_sampled
from kimi.decoding.backend import Backend, Decision, Proposal, Scores
from kimi.decoding.drawing import sample_rows
from kimi.decoding.requests import MAX_SEQUENCES, Request, Steps, no_steps
from kimi.decoding.state import DecodeState


def choose_rows(confidence: Array, running: Array, request: Request) -> Array:
    """How many rows of each sequence to verify.

    All sequences share the rows of a step: those drafts are verified that are most likely to
    survive, as many as maximise the expected tokens per time. Fewer rows win a tie.

    Args:
      confidence: float32 [B, R], probability that a draft is accepted if all before it were.
      running: bool [B], sequences that have not ended.
      request: its `rows`, or its `costs`.

    Returns: int32 [B], 1 to R.
    """
    sequences, block = confidence.shape
    survival = jnp.where(running[:, None], jnp.cumprod(confidence, 1)[:, : block - 1], 0).ravel()
    order = jnp.argsort(-survival, stable=True)  # of a sequence, the earlier draft goes first
    count = running.sum()
    expected = count + jnp.concatenate([jnp.zeros(1), jnp.cumsum(survival[order])])
    rows = count + jnp.arange(expected.shape[0])
    cost = jnp.where(
        rows <= MAX_SEQUENCES, request.costs[jnp.minimum(rows, MAX_SEQUENCES)], jnp.inf
    )
    chosen = jnp.argmax(expected / (request.costs[0] + cost))
    verified = jnp.argsort(order).reshape(sequences, block - 1) < chosen
    adaptive = 1 + verified.sum(1)
    fixed = jnp.minimum(request.rows, block)
    return jnp.where(request.rows > 0, fixed, adaptive).astype(jnp.int32)


def forced_accepted(step: Array, length: Array, valid: Array) -> Array:
    """Drafts to accept so that steps yield `length` tokens on average, whatever the target says.

    Args:
      step: int32 [], counted from the sequence's first.
      length: float32 [], tokens per step.
      valid: int32 [], rows verified.

    Returns: int32 [], 0 to valid - 1.
    """
    tokens = jnp.floor((step + 1) * length) - jnp.floor(step * length)
    return jnp.clip(tokens.astype(jnp.int32), 1, valid) - 1


class Emitted(NamedTuple):
    """int32 [R] tokens, how many of them count, and whether a stop id is the last."""

    tokens: Array
    number: Array
    stopped: Array


def emit(drafted: Array, accepted: Array, following: Array, left: Array, stops: Array) -> Emitted:
    """Accepted drafts and the token after them, up to the first stop id and what is left.

    Args:
      drafted: int32 [R - 1].
      accepted, following, left: int32 [].
      stops: int32 [STOP_IDS].
    """
    place = jnp.arange(drafted.shape[0] + 1)
    tokens = jnp.append(drafted, 0)
    tokens = jnp.where(place < accepted, tokens, jnp.where(place == accepted, following, 0))
    count = jnp.minimum(accepted + 1, left)
    ends = (tokens[:, None] == stops[None]).any(1) & (place < count)
    count = jnp.where(ends.any(), jnp.argmax(ends) + 1, count)
    return Emitted(tokens, count.astype(jnp.int32), ends.any())


def key_of(seed: Array, position: Array) -> Array:
    """The key of the choice behind the token at a position, whatever the form of the step."""
    return jax.random.fold_in(jax.random.key(seed), position)


class _Outcome(NamedTuple):
    """Of a step, for `Steps`; axes [B] first."""

    tokens: Array
    emitted: Array
    accepted: Array
    finite: Array
    stopped: Array


@dataclass(frozen=True)
class Loop:
    """The traced loop.

    Attributes:
      backend: of the model.
      greedy: whether no sequence is sampled.
      widths: of `Backend.widths`.
      steps: N.
    """

    backend: Backend
    greedy: bool
    widths: tuple[int, ...]
    steps: int

    def run(
        self, weights: Any, state: DecodeState, request: Request
    ) -> tuple[DecodeState, tuple[Request, Steps]]:
        """Steps until all sequences have ended or the call has made all of its own.

        Returns: the state; the request of the next call; what the steps did.
        """
        backend = self.backend
        request = replace(request, left=jnp.where(state.stopped, 0, request.left))
        steps = no_steps(self.steps, backend.sequences, backend.block)

        def more(carry: tuple[DecodeState, Request, Steps]) -> Array:
            return (carry[2].count < self.steps) & (carry[1].left > 0).any()

        def body(
            carry: tuple[DecodeState, Request, Steps],
        ) -> tuple[DecodeState, Request, Steps]:
            return self._step(weights, *carry)

        state, request, steps = lax.while_loop(more, body, (state, request, steps))
        steps = replace(steps, stopped=state.stopped, finished=request.left <= 0)
        return state, (replace(request, before=request.before + steps.count), steps)

    def _step(
        self, weights: Any, state: DecodeState, request: Request, steps: Steps
    ) -> tuple[DecodeState, Request, Steps]:
        backend, running = self.backend, request.left > 0
        state, proposal = self._draft(weights, state)
        valid = choose_rows(proposal.confidence, running, request)
        drafted = proposal.tokens[:, : backend.block - 1]
        rows = jnp.concatenate([state.tokens[:, None], drafted], 1)
        before, step = state, request.before + steps.count

        def decide(scores: Scores) -> Decision:
            width = scores.best.shape[1]
            accepted, following = self._accept(
                scores, drafted[:, : width - 1], valid, before, request, step
            )
            emitted = jax.vmap(emit)(drafted, accepted, following, request.left, request.stop_ids)
            count = jnp.where(running, emitted.number, 0)
            last = jnp.take_along_axis(emitted.tokens, emitted.number[:, None] - 1, 1)[:, 0]
            ignored = jnp.arange(width) >= valid[:, None]
            outcome = _Outcome(
                tokens=emitted.tokens,
                emitted=count,
                accepted=accepted,
                finite=(scores.finite | ignored).all(1) | ~running,
                stopped=emitted.stopped & running,
            )
            return Decision(jnp.where(running, last, before.tokens), count, outcome)

        state, decision = backend.verify(weights, state, rows, valid, self.widths, decide)
        outcome = decision.emitted
        left = jnp.where(outcome.stopped, 0, request.left - outcome.emitted)
        state = replace(state, stopped=before.stopped | outcome.stopped)
        i = steps.count
        steps = replace(
            steps,
            count=i + 1,
            tokens=steps.tokens.at[i].set(outcome.tokens),
            emitted=steps.emitted.at[i].set(outcome.emitted),
            rows=steps.rows.at[i].set(valid),
            accepted=steps.accepted.at[i].set(outcome.accepted),
            confidence=steps.confidence.at[i].set(proposal.confidence),
            finite=steps.finite.at[i].set(outcome.finite),
        )
        return state, replace(request, left=left), steps

    def _draft(self, weights: Any, state: DecodeState) -> tuple[DecodeState, Proposal]:
        backend = self.backend
        if backend.block > 1:
            state, proposal = backend.draft(weights, state)
            tokens, confidence = proposal.tokens, proposal.confidence
            return state, Proposal(tokens[:, : backend.block], confidence[:, : backend.block])
        shape = (backend.sequences, 1)
        return state, Proposal(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))

    def _accept(
        self,
        scores: Scores,
        drafted: Array,
        valid: Array,
        before: DecodeState,
        request: Request,
        step: Array,
    ) -> tuple[Array, Array]:
        """Accepted drafts and the token after them, int32 [B] each."""
        if not self.greedy:
            return self._accept_sampled(scores, drafted, valid, before.positions, request)
        accepted, following = jax.vmap(accept_greedy)(scores.best, drafted, valid)
        forced = jax.vmap(forced_accepted, (None, None, 0))(step, request.forced, valid)
        chosen = jnp.take_along_axis(scores.best, forced[:, None], 1)[:, 0]
        pretends = request.forced > 0
        return jnp.where(pretends, forced, accepted), jnp.where(pretends, chosen, following)

    def _accept_sampled(
        self, scores: Scores, drafted: Array, valid: Array, positions: Array, request: Request
    ) -> tuple[Array, Array]:
        """The key of a row depends on the seed and on the position that it decides."""
        sequences, width = scores.best.shape
        places = positions[:, None] + jnp.arange(width)
        keys = jax.vmap(jax.vmap(key_of, (None, 0)))(request.seeds, places)
        keys = jax.vmap(jax.vmap(jax.random.split))(keys)
        uniform = jax.vmap(jax.vmap(jax.random.uniform))(keys[:, :-1, 0])

        def rows(values: Array) -> Array:
            return jnp.repeat(values, width)

        found = sample_rows(
            scores.logits,
            jnp.pad(drafted, ((0, 0), (0, 1)), constant_values=-1).ravel(),
            keys[:, :, 1].ravel(),
            rows(request.temperature),
            rows(request.top_p),
            rows(request.top_k),
        )
        found = jax.tree.map(lambda x: x.reshape(sequences, width), found)
        return jax.vmap(accept_sampled)(uniform, found, valid)
