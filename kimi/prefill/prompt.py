"""A chunk of a prompt through target and drafter, on one rank."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from kimi.kernels.chip import SUBLANES, round_up
from kimi.kernels.draft.layout import DraftWeights
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.layout import Weights
from kimi.kernels.plan import Plan
from kimi.prefill.collectives import Collectives
from kimi.prefill.drafter import extend
from kimi.prefill.layer import Span
from kimi.prefill.program import Chunk


@dataclass(frozen=True)
class Caches:
    """What a sequence leaves behind on one rank, as the decode kernels have it.

    Attributes:
      kda: float32 [KDA layers, rows, 128], see `records.KdaRecord`.
      cache: uint32 [MLA layers, blocks, words, 128], see `records.LatentCache`.
      context: uint32 [layers, blocks, words, 128], the drafter's, see `draft.cache`.
    """

    kda: Array
    cache: Array
    context: Array


@dataclass(frozen=True)
class Prompt:
    """Chunks of a prompt; to be used inside `shard_map` over `AXIS`.

    Attributes:
      plan: of the decode kernel, of a block of one sequence.
      draft: of the draft kernel.
      interpret: True without a TPU.
    """

    plan: Plan
    draft: DraftPlan
    interpret: bool

    def prefill(
        self, target: Weights, drafter: DraftWeights, caches: Caches, pending: Array,
        num_accepted: Array, tokens: Array, span: Span,
    ) -> Caches:  # fmt: skip
        """Consumes tokens.

        Args:
          target, drafter: weights of the rank.
          caches: of which the last step's rows are not yet part.
          pending: float32 [taps, 8, D], taps of these rows, the same on all ranks.
          num_accepted: [] int32, how many of these rows were accepted: they are at span.start -
            num_accepted on.
          tokens: int32 [T].
          span: of the tokens.

        Returns: the caches behind the valid tokens; nothing is pending.
        """
        before = Span(span.start - num_accepted, num_accepted)
        context = extend(self.draft, drafter, caches.context, self._own(pending), before)
        chunk = Chunk(self.plan, self.interpret)
        kda, cache, taps = chunk.run(target, caches.kda, caches.cache, num_accepted, tokens, span)
        return Caches(kda, cache, extend(self.draft, drafter, context, taps, span))

    def _own(self, pending: Array) -> Array:
        """The rank's share of rows that all ranks have, [taps, rows / R, D]."""
        ranks = self.plan.layout.mesh.ranks
        rows = round_up(SUBLANES, ranks)
        full = jnp.pad(pending, ((0, 0), (0, rows - SUBLANES), (0, 0)))
        shares = full.reshape(len(full), ranks, rows // ranks, -1)
        return jnp.take(shares, Collectives(ranks).rank(), 1)
