"""Several sequences token by token, on the device; or one, in the kernel's fastest form.

Prompts are read one after the other, each in chunks. Then every step takes each sequence one token
further; one that has ended only stands still.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kimi.decoding.acceptance import accept_sampled
from kimi.decoding.sampling import distribution
from kimi.kernels.plan import Plan, default_settings
from kimi.prefill.chunks import chunk_sizes, chunks
from kimi.runtime.calls import Calls, Rows, key_of
from kimi.runtime.model import WHOLE, DeviceModel, ModelWeights
from kimi.runtime.prompts import BatchPrompts
from kimi.runtime.state import Arrays, DecodeState, empty_state, placed, state_specs


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class BatchRequest(Arrays):
    """What is asked for S sequences, and how far it is done: a call returns it for the next one.

    Attributes:
      left: int32 [S], tokens to emit; 0 once the sequence has ended.
      stop_ids: int32 [STOP_IDS], ids that end a sequence; -1 where there is none.
      temperature, top_p: float32 [], of a sampling program.
      top_k: int32 [], likewise; 0 keeps all tokens.
      seeds: int32 [S].
    """

    left: Array
    stop_ids: Array
    temperature: Array
    top_p: Array
    top_k: Array
    seeds: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class BatchSteps(Arrays):
    """What a call did; N is steps per call.

    Attributes:
      count: int32 [], steps that ran.
      tokens: int32 [N, S]; emitted: bool [N, S], whether the sequence emitted its token.
      finite: bool [], whether all logits were numbers.
      stopped: bool [S], whether a stop id was emitted.
    """

    count: Array
    tokens: Array
    emitted: Array
    finite: Array
    stopped: Array


@dataclass(frozen=True)
class _Loop:
    """The traced side: everything on one rank."""

    calls: Calls
    greedy: bool
    steps: int

    def run(
        self, weights: ModelWeights, state: DecodeState, request: BatchRequest
    ) -> tuple[DecodeState, BatchRequest, BatchSteps]:
        """Steps until all sequences have ended or the call has made all of its own."""
        shape = (self.steps, *request.left.shape)
        steps = BatchSteps(
            jnp.zeros((), jnp.int32), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool),
            jnp.bool_(True), jnp.zeros(request.left.shape, bool),
        )  # fmt: skip

        def more(carry: tuple[DecodeState, BatchRequest, BatchSteps]) -> Array:
            return (carry[2].count < self.steps) & (carry[1].left > 0).any()

        def body(
            carry: tuple[DecodeState, BatchRequest, BatchSteps],
        ) -> tuple[DecodeState, BatchRequest, BatchSteps]:
            return self._step(weights, *carry)

        return lax.while_loop(more, body, (state, request, steps))

    def _step(
        self, weights: ModelWeights, state: DecodeState, request: BatchRequest,
        steps: BatchSteps,
    ) -> tuple[DecodeState, BatchRequest, BatchSteps]:  # fmt: skip
        runs, before = request.left > 0, state.lengths
        rows = jnp.int32(self.calls.plan.rows.count)
        state, found = self.calls.target(weights, state, state.tokens, rows)
        chosen = self._choose(found, before, request)
        tokens = jnp.where(runs, chosen, state.tokens)
        stops = runs & (tokens[:, None] == request.stop_ids[None]).any(1)
        left = jnp.where(stops, 0, request.left - runs)
        i = steps.count
        steps = BatchSteps(
            count=i + 1,
            tokens=steps.tokens.at[i].set(tokens),
            emitted=steps.emitted.at[i].set(runs),
            finite=steps.finite & jnp.all(found.finite[: before.shape[0]] | ~runs),
            stopped=steps.stopped | stops,
        )
        lengths = jnp.where(runs, state.lengths, before)
        return replace(state, tokens=tokens, lengths=lengths), replace(request, left=left), steps

    def _choose(self, found: Rows, positions: Array, request: BatchRequest) -> Array:
        sequences = positions.shape[0]
        if self.greedy:
            return found.best[:sequences]
        logits = self.calls.whole_logits(found)[:sequences]
        p = distribution(logits, request.temperature, request.top_p, request.top_k)
        keys = jax.vmap(key_of)(request.seeds, positions)
        nothing = jnp.zeros(0, jnp.int32)
        return jax.vmap(lambda k, row: accept_sampled(k, row[None], nothing, 1)[1])(keys, p)


class BatchPrograms:
    """The compiled programs of up to 8 sequences decoded token by token.

    Args:
      model: placed.
      sequences: 1 to 8.
      context: tokens of a sequence at most, prompt included.
      steps: steps per call.

    Raises:
      PlanError: the model, its context or its mesh cannot be served.
    """

    def __init__(self, model: DeviceModel, sequences: int, context: int, steps: int = 16):
        settings = default_settings(model.layout, sequences, context, sequences)
        self.plan = Plan(model.layout, settings)
        self.model, self.steps = model, steps
        calls, specs = Calls(self.plan, None, None, model.interpreted), state_specs(drafts=False)
        self._run = {
            greedy: model.over_ranks(
                _Loop(calls, greedy, steps).run, specs, 1, (specs, WHOLE, WHOLE)
            )
            for greedy in (True, False)
        }
        block = Plan(model.layout, default_settings(model.layout, 1, context, rollback=True))
        self._chunks = chunk_sizes(block)
        prompts = BatchPrompts(self.plan, block, model.interpreted)
        self._feed = model.over_ranks(prompts.feed, specs, 3, specs)

    def start(self, prompts: Sequence[Sequence[int]]) -> DecodeState:
        """The state behind prompts of 1 token or more, of any lengths."""
        state = empty_state(self.model, self.plan, None)
        for i, prompt in enumerate(prompts):
            for padded, count in chunks(np.asarray(prompt[:-1], np.int32), self._chunks):
                state = self._feed(
                    self.model.arrays, state, jnp.int32(i), jnp.asarray(padded), jnp.int32(count)
                )
        newest = jnp.asarray([prompt[-1] for prompt in prompts], jnp.int32)
        return placed(self.model, replace(state, tokens=newest))

    def run(
        self, state: DecodeState, request: BatchRequest, greedy: bool
    ) -> tuple[DecodeState, BatchRequest, BatchSteps]:
        """Up to `steps` steps; the state is donated. Raises InputError if it was before."""
        found: tuple[DecodeState, BatchRequest, BatchSteps] = self._run[greedy](
            self.model.arrays, state, request
        )
        return found
