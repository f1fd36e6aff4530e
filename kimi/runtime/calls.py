"""The kernels on one rank, as functions of traced values; to be used inside `shard_map`."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
from jax import Array, lax

from kimi.kernels import megakernel
from kimi.kernels.chip import SUBLANES
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft import kernel as draft_kernel
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.plan import Plan
from kimi.runtime.model import ModelWeights
from kimi.runtime.state import DecodeState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """What the target says about the rows of a step, the same on all ranks.

    Attributes:
      best: int32 [8], the greedy choice after each row.
      finite: bool [8], whether the row's logits have a largest one.
      logits: float32 [8, vocabulary of the rank]: this rank's own part.
    """

    best: Array
    finite: Array
    logits: Array


@dataclass(frozen=True)
class Proposal:
    """A drafted block: int32 [8] candidates and float32 [8] confidence."""

    tokens: Array
    confidence: Array


@dataclass(frozen=True)
class Target:
    """The target's kernel of a plan.

    Attributes:
      plan: of the step.
      interpret: True without a TPU.
    """

    plan: Plan
    interpret: bool

    @cached_property
    def _kernel(self) -> Callable[..., tuple[Array, ...]]:
        return megakernel.build(self.plan, self.interpret)

    def __call__(
        self, weights: ModelWeights, state: DecodeState, tokens: Array, live: Array
    ) -> tuple[DecodeState, Rows]:
        """Runs rows behind what the state has kept.

        Args:
          weights: one rank's, each [1, ...].
          state: one rank's.
          tokens: int32 [rows].
          live: int32 [], how many rows count, the first ones.

        Returns: the state, in which all live rows are kept; and the rows' results.
        """
        missing = SUBLANES - tokens.shape[0]
        lengths = state.lengths + state.kept
        numbers = jnp.concatenate([
            jnp.pad(tokens, (0, missing)),
            jnp.pad(lengths, (0, SUBLANES - lengths.shape[0])),
            jnp.stack([state.kept, live]),
        ]).astype(jnp.int32)  # fmt: skip
        own = (w[0] for w in weights.target)
        kda, cache, best, value, logits, taps = self._kernel(
            numbers, *own, state.kda[0], state.cache[0]
        )
        share = self.plan.layout.mesh.local(self.plan.layout.config.vocab_size)
        rows = Rows(best[:, 0], value[:, 0] > -jnp.inf, logits[:, :share])
        if self.plan.rows.rolls_back:
            kept = live.astype(jnp.int32)
        else:
            lengths, kept = lengths + 1, state.kept
        state = replace(
            state, kda=kda[None], cache=cache[None], lengths=lengths, kept=kept,
            taps=None if state.taps is None else taps,
        )  # fmt: skip
        return state, rows


class Calls:
    """The kernels of a decoder.

    Args:
      plan: of the target.
      draft: of the drafter, or None.
      single: of the target for a single row, on states as `plan` has them; or None.
      interpret: True without a TPU.
    """

    def __init__(self, plan: Plan, draft: DraftPlan | None, single: Plan | None, interpret: bool):
        self.plan = plan
        self.target = Target(plan, interpret)
        self._single = None if single is None else Target(single, interpret)
        self._draft = None if draft is None else draft_kernel.build(draft, interpret)

    def verify(
        self, weights: ModelWeights, state: DecodeState, tokens: Array, live: Array
    ) -> tuple[DecodeState, Rows]:
        """As `target`, but a single live row takes the kernel that is made for one: a step that is
        not worth drafting for costs what plain decoding does."""
        single = self._single
        assert single is not None
        return lax.cond(
            live == 1,
            lambda state: single(weights, state, tokens[:1], live),
            lambda state: self.target(weights, state, tokens, live),
            state,
        )

    def draft(self, weights: ModelWeights, state: DecodeState) -> tuple[DecodeState, Proposal]:
        """Commits the kept rows to the drafter's context and drafts behind the newest token."""
        assert self._draft is not None and state.context is not None and weights.drafter is not None
        numbers = jnp.stack([state.tokens[0], state.lengths[0], state.kept]).astype(jnp.int32)
        own = (w[0] for w in weights.drafter)
        context, tokens, confidence = self._draft(numbers, state.taps, *own, state.context[0])
        return replace(state, context=context[None]), Proposal(tokens[:, 0], confidence[:, 0])

    def whole_logits(self, rows: Rows) -> Array:
        """The logits of all ranks, float32 [8, vocab]. Moves all of them: for sampling only."""
        mesh = self.plan.layout.mesh
        if mesh.ranks == 1:
            return rows.logits
        parts = lax.all_gather(rows.logits, AXIS)
        return jnp.swapaxes(parts, 0, 1).reshape(SUBLANES, -1)


def key_of(seed: Array, position: Array) -> jax.Array:
    """The key of the choice behind the token at a position; as in the reference's loop."""
    return jax.random.fold_in(jax.random.key(seed), position)
