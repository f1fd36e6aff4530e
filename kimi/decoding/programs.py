"""The compiled pieces of a decoding step: prefill, draft, verify.

A flax module is taken apart once: its weights become a flat tuple that is passed to the compiled
functions, its structure stays with this object, or is made when something has to be traced. Passing
the structure to `jax.jit` as a static argument would hash it at every call, which takes longer than
a step of a small model.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from jax.typing import DTypeLike

from kimi.config import DraftConfig, ModelConfig
from kimi.decoding.acceptance import accept_greedy, accept_sampled
from kimi.decoding.kept import Kept
from kimi.decoding.sampling import Sampling, distribution, sampling_arrays
from kimi.reference.state import (
    Draft,
    DraftCache,
    ModelState,
    initial_draft_cache,
    initial_state,
    rollback,
)

if TYPE_CHECKING:  # flax is imported when something has to be traced: most of a second
    from kimi.reference.draft import Dspark
    from kimi.reference.model import K3

IntArray = npt.NDArray[np.int32]


class Context(NamedTuple):
    """Everything one sequence carries: target and drafter state (None without a drafter)."""

    target: ModelState
    draft: DraftCache | None


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


@dataclass(frozen=True)
class Parts:
    """A module taken apart into flat weights and what puts them together again."""

    weights: tuple[Array, ...]
    build: Callable[[tuple[Array, ...]], Any]


class Programs:
    """Compiled functions of a model and its drafter, shared by all decoders of that model.

    The functions donate the context they are given: it is used up.

    Args:
      target: the model.
      config: its configuration.
      dtype: of activations between operations.
      drafter: its DSpark drafter, or None for plain decoding only.
      draft_config: of the drafter.
      kept: where programs of earlier runs are, or None.

    Raises:
      ConfigError: the drafter was made for another model.
    """

    def __init__(
        self, target: Parts, config: ModelConfig, dtype: DTypeLike, drafter: Parts | None = None,
        draft_config: DraftConfig | None = None, kept: Kept | None = None,
    ):  # fmt: skip
        if draft_config is not None:
            draft_config.check_target(config)
        self.config, self.draft_config = config, draft_config
        self._dtype, self._kept = dtype, kept
        self._parts = [p for p in (target, drafter) if p is not None]
        self._weights = tuple(p.weights for p in self._parts)
        self._ready: dict[Hashable, Callable[..., Any]] = {}

    @classmethod
    def of(cls, target: "K3", config: ModelConfig, drafter: "Dspark | None" = None) -> "Programs":
        """The programs of modules as they are, changed ones too."""
        from kimi.reference.loading import take_apart

        return cls(
            Parts(*take_apart(target)), config, target.embed_tokens.precision.stream,
            None if drafter is None else Parts(*take_apart(drafter)),
            None if drafter is None else drafter.config,
        )  # fmt: skip

    def module(self, index: int) -> Any:
        """The target, 0, or the drafter, 1, as a flax module."""
        return self._parts[index].build(self._weights[index])

    def empty_context(self, capacity: int) -> Context:
        """The context before the first token, with room for `capacity` tokens."""
        empty = partial(self._run_empty, capacity)
        empty.__name__ = f"_run_empty_{capacity}"  # type: ignore[attr-defined]
        return self._call(empty, self._weights, result=jax.eval_shape(empty, self._weights))

    def prefill(self, tokens: IntArray, valid: int, context: Context) -> Context:
        """Consumes the first `valid` of tokens [T] int32; one compiled program per T."""
        args = (context, tokens, np.int32(valid))
        return self._call(self._run_prefill, self._weights, *args, result=context, donate=1)

    def logits(self, tokens: IntArray) -> Array:
        """The logits behind each of tokens [T] int32, [T, vocab]; one compiled program per T."""
        return self._call(self._run_logits, self._weights, tokens, result=0)

    def draft(self, anchor: int, state: DraftCache) -> Draft:
        """Drafts the block after the token `anchor`."""
        result = Draft(*[0] * 5)  # type: ignore[arg-type]
        return self._call(self._run_draft, self._weights[1], np.int32(anchor), state, result=result)

    def verify(self, tokens: IntArray, context: Context, sampling: Sampling) -> Verified:
        """Feeds anchor and drafts, tokens [R] int32; one compiled program per R.

        Args:
          sampling: greedy is a program of its own. Each position derives its own key.
        """
        run: Callable[..., Verified] = self._run_greedy
        args: tuple[Any, ...] = (context, tokens)
        if not sampling.greedy:
            run = self._run_sampled
            args += (np.int32(sampling.seed), sampling_arrays(sampling))
        result = Verified(*[0] * 3, context)  # type: ignore[call-arg,arg-type]
        return self._call(run, self._weights, *args, result=result, donate=1)

    def _call(
        self, function: Callable[..., Any], weights: Any, *args: Any, result: Any,
        donate: int | None = None,
    ) -> Any:  # fmt: skip
        """A method's `result` (a tree of this form), compiled once for arguments of such shapes."""
        key = (function.__name__, *(x.shape for x in jax.tree.leaves(args)))
        if key not in self._ready:
            whole = (weights, *args)
            self._ready[key] = (
                jax.jit(function, donate_argnums=donate) if self._kept is None
                else self._kept.program(function, donate, whole, result)
            )  # fmt: skip
        return self._ready[key](weights, *args)

    def _extend(self, weights: Any, out: Any, draft: DraftCache | None, valid: Array) -> Any:
        """The drafter's context after the first `valid` tokens of a forward pass."""
        if draft is None or self.draft_config is None:
            return None
        taps = out.taps(self.draft_config.aux_hidden_state_layer_ids)
        return self._parts[1].build(weights[1]).extend(taps, draft, valid)

    def _run_empty(self, capacity: int, weights: Any) -> Context:
        del weights  # they say on which device
        draft = None
        if self.draft_config is not None:
            draft = initial_draft_cache(self.draft_config, capacity, self._dtype)
        return Context(initial_state(self.config, capacity, self._dtype), draft)

    def _run_logits(self, weights: Any, tokens: Array) -> Array:
        target = self._parts[0].build(weights[0])
        state = initial_state(self.config, tokens.shape[0], self._dtype)
        return jnp.asarray(target.logits(target(tokens, state).hidden))

    def _run_prefill(self, weights: Any, context: Context, tokens: Array, valid: Array) -> Context:
        out = self._parts[0].build(weights[0])(tokens, context.target, valid)
        return Context(out.state, self._extend(weights, out, context.draft, valid))

    def _run_draft(self, weights: Any, anchor: Array, state: DraftCache) -> Draft:
        return self._parts[1].build(weights).draft(anchor, state)

    def _run_greedy(self, weights: Any, context: Context, tokens: Array) -> Verified:
        def accept(logits: Array) -> tuple[Array, Array]:
            best = jnp.argmax(logits, -1).astype(jnp.int32)
            return accept_greedy(best, tokens[1:], len(tokens))

        return self._run_verify(weights, context, tokens, accept)

    def _run_sampled(
        self, weights: Any, context: Context, tokens: Array, seed: Array,
        sampling: tuple[Array, Array, Array],
    ) -> Verified:  # fmt: skip
        def accept(logits: Array) -> tuple[Array, Array]:
            p = distribution(logits, *sampling)
            key = jax.random.fold_in(jax.random.key(seed), context.target.length)
            return accept_sampled(key, p, tokens[1:], len(tokens))

        return self._run_verify(weights, context, tokens, accept)

    def _run_verify(
        self, weights: Any, context: Context, tokens: Array,
        accept: Callable[[Array], tuple[Array, Array]],
    ) -> Verified:  # fmt: skip
        target = self._parts[0].build(weights[0])
        out = target.rows(tokens, context.target)
        logits = target.logits(out.hidden)
        accepted, following = accept(logits)
        kept = rollback(out.state, context.target.length, accepted + 1)
        draft = self._extend(weights, out, context.draft, accepted + 1)
        return Verified(accepted, following, jnp.isfinite(logits).all(), Context(kept, draft))
