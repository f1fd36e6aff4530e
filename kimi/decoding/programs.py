"""The compiled pieces of a decoding step: prefill, draft, verify.

A flax module is taken apart once: its weights become a flat tuple that is passed to the compiled
functions, its structure stays with this object. Passing the structure to `jax.jit` as a static
argument would hash it at every call, which takes longer than a step of a small model.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from kimi.config import ModelConfig
from kimi.decoding.acceptance import accept_greedy, accept_sampled
from kimi.decoding.sampling import Sampling, distribution, sampling_arrays
from kimi.reference.draft import Draft, DraftState, Dspark, initial_draft_state
from kimi.reference.model import K3
from kimi.reference.state import ModelState, initial_state, keep_rows


class Context(NamedTuple):
    """Everything one sequence carries: target and drafter state (None without a drafter)."""

    target: ModelState
    draft: DraftState | None


class Verified(NamedTuple):
    """Result of a verification.

    Attributes:
      accepted: [] int32, drafts that stay.
      following: [] int32, the token after them.
      finite: [] bool, whether all logits are numbers.
      context: after the anchor and the accepted drafts, and nothing else.
    """

    accepted: Array
    following: Array
    finite: Array
    context: Context


class _Parts:
    """A module taken apart into flat weights and a structure that puts them together again."""

    def __init__(self, module: nnx.Module):
        self._graph, state = nnx.split(module)
        leaves, self._tree = jax.tree.flatten(state)
        self.weights = tuple(leaves)

    def build(self, weights: tuple[Array, ...]) -> Any:
        return nnx.merge(self._graph, jax.tree.unflatten(self._tree, weights))


class Programs:
    """Compiled functions of a model and its drafter, shared by all decoders of that model.

    The functions donate the context they are given: it is used up.

    Args:
      target: the model.
      config: its configuration.
      drafter: its DSpark drafter, or None for plain decoding only.

    Raises:
      ConfigError: the drafter was made for another model.
    """

    def __init__(self, target: K3, config: ModelConfig, drafter: Dspark | None = None):
        if drafter is not None:
            drafter.config.check_target(config)
        self.config = config
        self.draft_config = None if drafter is None else drafter.config
        self._dtype = target.embed_tokens.precision.stream
        self._parts = [_Parts(m) for m in (target, drafter) if m is not None]
        self._weights = tuple(p.weights for p in self._parts)
        self._prefill = jax.jit(self._run_prefill, donate_argnames="context")
        self._logits = jax.jit(self._run_logits)
        self._draft = jax.jit(self._run_draft)
        self._verify = jax.jit(
            self._run_verify, donate_argnames="context", static_argnames="greedy"
        )

    def empty_context(self, capacity: int) -> Context:
        """The context before the first token, with room for `capacity` tokens."""
        draft = None
        if self.draft_config is not None:
            draft = initial_draft_state(self.draft_config, capacity, self._dtype)
        return Context(initial_state(self.config, capacity, self._dtype), draft)

    def prefill(self, tokens: Array, valid: int, context: Context) -> Context:
        """Consumes the first `valid` of tokens [T] int32; one compiled program per T."""
        return self._prefill(self._weights, tokens, jnp.int32(valid), context)

    def logits(self, tokens: Array) -> Array:
        """The logits behind each of tokens [T] int32, [T, vocab]; one compiled program per T."""
        return self._logits(self._weights, tokens)

    def draft(self, anchor: int, state: DraftState) -> Draft:
        """Drafts the block after the token `anchor`."""
        return self._draft(self._weights[1], jnp.int32(anchor), state)

    def verify(self, tokens: Array, context: Context, key: Array, sampling: Sampling) -> Verified:
        """Feeds anchor and drafts, tokens [R] int32; one compiled program per R.

        Args:
          key: PRNG key of the whole generation; each position derives its own.
          sampling: greedy is a program of its own.
        """
        return self._verify(
            self._weights, tokens, context, key, sampling_arrays(sampling), greedy=sampling.greedy
        )

    def _extend(self, weights: Any, out: Any, draft: DraftState | None, valid: Array) -> Any:
        """The drafter's context after the first `valid` tokens of a forward pass."""
        if draft is None or self.draft_config is None:
            return None
        taps = out.taps(self.draft_config.aux_hidden_state_layer_ids)
        return self._parts[1].build(weights[1]).extend(taps, draft, valid)

    def _run_logits(self, weights: tuple[tuple[Array, ...], ...], tokens: Array) -> Array:
        target = self._parts[0].build(weights[0])
        state = initial_state(self.config, tokens.shape[0], self._dtype)
        return jnp.asarray(target.logits(target(tokens, state).hidden))

    def _run_prefill(self, weights: Any, tokens: Array, valid: Array, context: Context) -> Context:
        out = self._parts[0].build(weights[0])(tokens, context.target, valid)
        return Context(out.state, self._extend(weights, out, context.draft, valid))

    def _run_draft(self, weights: Any, anchor: Array, state: DraftState) -> Draft:
        return self._parts[1].build(weights).draft(anchor, state)

    def _run_verify(
        self, weights: Any, tokens: Array, context: Context, key: Array,
        sampling: tuple[Array, Array, Array], greedy: bool,
    ) -> Verified:  # fmt: skip
        target = self._parts[0].build(weights[0])
        length = context.target.length
        out = target.rows(tokens, context.target)
        logits = target.logits(out.hidden)
        if greedy:
            best = jnp.argmax(logits, -1).astype(jnp.int32)
            accepted, following = accept_greedy(best, tokens[1:], len(tokens))
        else:
            p = distribution(logits, *sampling)
            key = jax.random.fold_in(key, length)
            accepted, following = accept_sampled(key, p, tokens[1:], len(tokens))
        kept = keep_rows(out.state, length, accepted + 1)
        draft = self._extend(weights, out, context.draft, accepted + 1)
        return Verified(accepted, following, jnp.isfinite(logits).all(), Context(kept, draft))
