"""The reference as a backend of the decoding loop.

A flax module is taken apart once: its weights become a flat tuple that is passed to the compiled
functions, its structure stays with this object, or is made when something has to be traced. Passing
the structure to `jax.jit` as a static argument would hash it at every call, which takes longer than
a step of a small model.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax
from jax.typing import DTypeLike

from kimi.config import DraftConfig, ModelConfig
from kimi.decoding.backend import Decide, Decision, Proposal, Scores
from kimi.decoding.drawing import Logits
from kimi.decoding.kept import Kept
from kimi.decoding.state import DecodeState
from kimi.reference.state import (
    DraftCache,
    KdaState,
    LayerState,
    MlaCache,
    ModelState,
    initial_draft_cache,
    initial_state,
    rollback,
)

if TYPE_CHECKING:  # flax is imported when something has to be traced: most of a second
    from kimi.reference.draft import Dspark
    from kimi.reference.model import K3

CHUNK_SIZES: tuple[int, ...] = (128, 512)
_SCORED_TOKENS = 64  # numbers of ids whose logits are asked for are rounded up to this


class ReferenceCaches(NamedTuple):
    """Caches of B sequences, see `reference.state`; every array has a first axis B.

    Attributes:
      layers: of the target.
      draft: the drafter's KV cache, None without a drafter.
    """

    layers: tuple[LayerState, ...]
    draft: DraftCache | None

    def detach(self) -> tuple["ReferenceCaches", list[Array]]:
        """The caches without the latents, which later tokens never overwrite; and these."""
        latents = [layer.latent for layer in self.layers if isinstance(layer, MlaCache)]
        empty = jnp.zeros(())
        layers = (MlaCache(empty) if isinstance(s, MlaCache) else s for s in self.layers)
        return self._replace(layers=tuple(layers)), latents

    def attach(self, latents: Sequence[Array]) -> "ReferenceCaches":
        """Reverses `detach`."""
        rest = iter(latents)
        layers = (MlaCache(next(rest)) if isinstance(s, MlaCache) else s for s in self.layers)
        return self._replace(layers=tuple(layers))


@dataclass(frozen=True)
class Parts:
    """A module taken apart into flat weights and what puts them together again."""

    weights: tuple[Array, ...]
    build: Callable[[tuple[Array, ...]], Any]


class ReferenceModel:
    """A model and its drafter, and the compiled functions of all decoders of that model.

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

    steps_per_call = 1

    def __init__(
        self, target: Parts, config: ModelConfig, dtype: DTypeLike, drafter: Parts | None = None,
        draft_config: DraftConfig | None = None, kept: Kept | None = None,
    ):  # fmt: skip
        if draft_config is not None:
            draft_config.check_target(config)
        self.config, self.draft_config, self.dtype = config, draft_config, dtype
        self.parts = [p for p in (target, drafter) if p is not None]
        self.weights = tuple(p.weights for p in self.parts)
        self._kept = kept
        self._ready: dict[Hashable, Callable[..., Any]] = {}

    @classmethod
    def of(
        cls, target: "K3", config: ModelConfig, drafter: "Dspark | None" = None
    ) -> "ReferenceModel":
        """The programs of modules as they are, changed ones too."""
        from kimi.reference.loading import take_apart

        return cls(
            Parts(*take_apart(target)), config, target.embed_tokens.precision.stream,
            None if drafter is None else Parts(*take_apart(drafter)),
            None if drafter is None else drafter.config,
        )  # fmt: skip

    @property
    def block_size(self) -> int:
        """Rows of a drafted block, the newest token's included; 1 without a drafter."""
        return 1 if self.draft_config is None else self.draft_config.block_size

    @cached_property
    def target(self) -> "K3":
        """The reference model."""
        return self.build_target(self.weights)

    @cached_property
    def drafter(self) -> "Dspark | None":
        """Its DSpark drafter, or None."""
        return self.build_drafter(self.weights) if self.weights[1:] else None

    def build_target(self, weights: Any) -> "K3":
        """The target with such weights as `weights`; may be traced."""
        target: K3 = self.parts[0].build(weights[0])
        return target

    def build_drafter(self, weights: Any) -> "Dspark":
        """The drafter, likewise."""
        drafter: Dspark = self.parts[1].build(weights[1])
        return drafter

    def backend(self, capacity: int, sequences: int, drafts: bool) -> "ReferenceBackend":
        """For sequences of up to `capacity` tokens, with or without drafts."""
        return ReferenceBackend(self, capacity, sequences, drafts)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits behind each id, float32 [T, V]. A program for every 64 ids of length."""
        padded = np.zeros(-(-len(ids) // _SCORED_TOKENS) * _SCORED_TOKENS, np.int32)
        padded[: len(ids)] = ids  # what stands behind them changes nothing before it
        return np.asarray(self.call("logits", self._logits, self.weights, padded, result=0))[
            : len(ids)
        ]

    def _logits(self, weights: Any, tokens: Array) -> Array:
        target = self.build_target(weights)
        state = initial_state(self.config, tokens.shape[0], self.dtype)
        return jnp.asarray(target.logits(target(tokens, state).hidden))

    def call(
        self, name: str, function: Callable[..., Any], *args: Any, result: Any,
        donate: int | None = None,
    ) -> Any:  # fmt: skip
        """A function's `result` (a tree of this form), compiled once for such arguments.

        Args:
          name: says with the arguments' shapes what is computed.
          donate: number of the argument whose place the result takes.
        """
        key = (name, *(x.shape for x in jax.tree.leaves(args[1:])))
        if key not in self._ready:
            self._ready[key] = (
                jax.jit(function, donate_argnums=donate) if self._kept is None
                else self._kept.program(name, function, donate, args, result)
            )  # fmt: skip
        return self._ready[key](*args)


class ReferenceBackend:
    """See `backend.Backend`. Several sequences are computed one after the other, in one program."""

    def __init__(self, model: ReferenceModel, capacity: int, sequences: int, drafts: bool):
        self._model, self._capacity, self._drafts = model, capacity, drafts
        self.vocab_size, self.sequences = model.config.vocab_size, sequences
        self.block = model.block_size if drafts else 1
        self.chunk_sizes, self.weights = CHUNK_SIZES, model.weights

    def widths(self, rows: frozenset[int]) -> tuple[int, ...]:
        """See `backend.Backend.widths`: any number of rows can be compiled."""
        return tuple(sorted({min(r, self.block) for r in rows}))

    def empty(self) -> DecodeState:
        """The state before the first token."""
        name = f"empty_{self._capacity}_{self.sequences}_{self._drafts}"
        return self._model.call(name, self._empty, self.weights, result=self.shapes())

    def shapes(self) -> DecodeState:
        """The shapes and dtypes of a state."""
        return self._shapes

    @cached_property
    def _shapes(self) -> DecodeState:
        return jax.eval_shape(self._empty, None)

    def place(self, state: DecodeState) -> DecodeState:
        """As it is: there is one device."""
        return state

    def compile(
        self, name: str, function: Callable[..., Any], others: int, extra: Any = None
    ) -> Callable[..., Any]:
        """See `backend.Backend.compile`: one program for every set of shapes."""
        del others

        def call(weights: Any, state: DecodeState, *args: Any) -> Any:
            if isinstance(state.tokens, jax.core.Tracer):  # part of a caller's own program
                return function(weights, state, *args)
            result = state if extra is None else (state, extra)
            return self._model.call(name, function, weights, state, *args, result=result, donate=1)

        return call

    def prefill(
        self, weights: Any, state: DecodeState, sequence: Array, tokens: Array, count: Array
    ) -> DecodeState:
        """See `backend.Backend.prefill`."""
        own = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, sequence, 0, False), state.caches)
        start = state.positions[sequence]
        out = self._model.build_target(weights)(tokens, ModelState(own.layers, start), count)
        new = ReferenceCaches(out.state.layers, self._extend(weights, out.taps, own.draft, count))
        caches = jax.tree.map(
            lambda all, one: lax.dynamic_update_index_in_dim(all, one, sequence, 0),
            state.caches,
            new,
        )
        return replace(state, caches=caches, lengths=state.lengths.at[sequence].set(start + count))

    def draft(self, weights: Any, state: DecodeState) -> tuple[DecodeState, Proposal]:
        """See `backend.Backend.draft`."""
        drafter = self._model.build_drafter(weights)
        drafted = self._each(drafter.draft, state.tokens, state.caches.draft)
        return state, Proposal(drafted.tokens, drafted.confidence)

    def verify(
        self, weights: Any, state: DecodeState, rows: Array, valid: Array,
        widths: tuple[int, ...], decide: Decide,
    ) -> tuple[DecodeState, Decision]:  # fmt: skip
        """See `backend.Backend.verify`."""
        forms = [partial(self._verify, weights, rows[:, :w], decide) for w in widths]
        if len(forms) == 1:
            return forms[0](state)
        chosen = sum((valid.max() > w).astype(jnp.int32) for w in widths[:-1])
        found: tuple[DecodeState, Decision] = lax.switch(chosen, forms, state)
        return found

    def _verify(
        self, weights: Any, rows: Array, decide: Decide, state: DecodeState
    ) -> tuple[DecodeState, Decision]:
        target = self._model.build_target(weights)

        def read(tokens: Array, layers: tuple[LayerState, ...], length: Array) -> Any:
            out = target.rows(tokens, ModelState(layers, length))
            taps = out.taps(self._taps) if self._drafts else None
            return out.hidden, out.state.layers, taps

        hidden, layers, taps = self._each(read, rows, state.caches.layers, state.lengths)
        logits = target.logits(hidden)
        scores = Scores(
            jnp.argmax(logits, -1).astype(jnp.int32),
            jnp.isfinite(logits).all(-1),
            Logits(logits.reshape(-1, logits.shape[-1])),
        )
        decision = decide(scores)

        def keep(
            caches: ReferenceCaches, read: tuple[LayerState, ...], taps: Any, accepted: Array
        ) -> ReferenceCaches:
            kept = rollback(ModelState(read, jnp.int32(0)), jnp.int32(0), accepted).layers
            if self.sequences > 1:  # one may have ended, and keeps nothing
                kept = tuple(
                    jax.tree.map(partial(jnp.where, accepted > 0), new, old)
                    if isinstance(new, KdaState) else new
                    for new, old in zip(kept, caches.layers, strict=True)
                )  # fmt: skip
            return ReferenceCaches(
                kept, self._extend(weights, lambda _: taps, caches.draft, accepted)
            )

        accepted = decision.accepted
        caches = self._each(keep, state.caches, layers, taps, accepted)
        lengths = state.lengths + accepted
        return replace(state, caches=caches, lengths=lengths, tokens=decision.newest), decision

    @property
    def _taps(self) -> tuple[int, ...]:
        assert self._model.draft_config is not None
        return self._model.draft_config.aux_hidden_state_layer_ids

    def _extend(
        self, weights: Any, taps: Callable[[tuple[int, ...]], Array], draft: DraftCache | None,
        count: Array,
    ) -> DraftCache | None:  # fmt: skip
        """The drafter's KV cache after the first `count` tokens of a forward pass."""
        if draft is None:
            return None
        return self._model.build_drafter(weights).extend(taps(self._taps), draft, count)

    def _each(self, function: Callable[..., Any], *trees: Any) -> Any:
        """Applies a function to the trees of each sequence."""
        if self.sequences > 1:
            return lax.map(lambda own: function(*own), trees)
        found = function(*jax.tree.map(lambda x: x[0], trees))
        return jax.tree.map(lambda x: x[None], found)

    def _empty(self, weights: Any) -> DecodeState:
        del weights  # they say on which device
        model, count = self._model, self.sequences
        draft = None
        if self._drafts:
            assert model.draft_config is not None
            draft = initial_draft_cache(model.draft_config, self._capacity, model.dtype)
        layers = initial_state(model.config, self._capacity, model.dtype).layers
        caches = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (count, *x.shape)), ReferenceCaches(layers, draft)
        )
        zeros = jnp.zeros(count, jnp.int32)
        return DecodeState(caches, zeros, zeros + 0, zeros + 0, jnp.zeros(count, bool))
