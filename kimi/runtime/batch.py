"""Several sequences token by token, on the device; or one, in the kernel's fastest form.

Every step feeds one token of each sequence: of its prompt as long as there is one, then what the
step before chose. So prompts of different lengths need no padding, and a sequence that has ended
only stands still.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array, lax

from kimi.decoding.acceptance import accept_sampled
from kimi.decoding.sampling import distribution
from kimi.kernels.plan import Plan, default_settings
from kimi.runtime.calls import Calls, Rows, key_of
from kimi.runtime.model import WHOLE, DeviceModel
from kimi.runtime.state import DecodeState, empty_state, state_specs


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BatchRequest:
    """What is asked for S sequences, and how far it is done: a call returns it for the next one.

    Attributes:
      prompts: int32 [S, C], padded behind with anything.
      prompt_lengths: int32 [S].
      left: int32 [S], tokens to emit; 0 once the sequence has ended.
      stop_ids: int32 [STOP_IDS], ids that end a sequence; -1 where there is none.
      temperature, top_p: float32 [], of a sampling program.
      seeds: int32 [S].
    """

    prompts: Array
    prompt_lengths: Array
    left: Array
    stop_ids: Array
    temperature: Array
    top_p: Array
    seeds: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BatchSteps:
    """What a call did; N is steps per call.

    Attributes:
      count: int32 [], steps in which any sequence emitted a token; others are not counted.
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
        self, weights: tuple[Array, ...], state: DecodeState, request: BatchRequest
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
        self, weights: tuple[Array, ...], state: DecodeState, request: BatchRequest,
        steps: BatchSteps,
    ) -> tuple[DecodeState, BatchRequest, BatchSteps]:  # fmt: skip
        runs, before = request.left > 0, state.lengths
        rows = jnp.int32(self.calls.plan.rows.count)
        state, found = self.calls.target(weights, state, state.tokens, rows)
        sequences = before.shape[0]
        chosen = self._choose(found, before, request)
        lengths = jnp.where(runs, state.lengths, before)
        last = request.prompts.shape[1] - 1
        place = jnp.minimum(lengths, last)[:, None]
        given = jnp.take_along_axis(request.prompts, place, 1)[:, 0]
        reading = lengths < request.prompt_lengths
        emits = runs & ~reading
        tokens = jnp.where(runs, jnp.where(reading, given, chosen), state.tokens)
        stops = emits & (tokens[:, None] == request.stop_ids[None]).any(1)
        left = jnp.where(stops, 0, request.left - emits)
        i = steps.count
        steps = BatchSteps(
            count=i + emits.any(),
            tokens=steps.tokens.at[i].set(tokens),
            emitted=steps.emitted.at[i].set(emits),
            finite=steps.finite & jnp.all(found.finite[:sequences] | ~runs),
            stopped=steps.stopped | stops,
        )
        return replace(state, tokens=tokens, lengths=lengths), replace(request, left=left), steps

    def _choose(self, found: Rows, positions: Array, request: BatchRequest) -> Array:
        sequences = positions.shape[0]
        if self.greedy:
            return found.best[:sequences]
        logits = self.calls.whole_logits(found)[:sequences]
        p = distribution(logits, request.temperature, request.top_p)
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
        calls, specs = Calls(self.plan, None, model.interpreted), state_specs(drafts=False)
        results = (specs, WHOLE, WHOLE)
        self._run = {
            greedy: model.over_ranks(_Loop(calls, greedy, steps).run, specs, 1, results)
            for greedy in (True, False)
        }

    def start(self, request: BatchRequest) -> DecodeState:
        """The state before the first token of the request's prompts."""
        return replace(empty_state(self.model, self.plan, None), tokens=request.prompts[:, 0])

    def run(
        self, state: DecodeState, request: BatchRequest, greedy: bool
    ) -> tuple[DecodeState, BatchRequest, BatchSteps]:
        """Up to `steps` steps that emit something; the state is donated."""
        found: tuple[DecodeState, BatchRequest, BatchSteps] = self._run[greedy](
            self.model.arrays, state, request
        )
        return found
