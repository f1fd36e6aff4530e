"""The kernels as a backend of the decoding loop.

Nothing is copied to roll back: the next step replays the rows of the last one that were accepted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from kimi.config import ModelConfig
from kimi.decoding.backend import Decide, Decision, Proposal, Scores
from kimi.decoding.drawing import Logits
from kimi.decoding.state import DecodeState
from kimi.errors import InputError
from kimi.kernels import megakernel
from kimi.kernels.chip import SUBLANES, WORD_BYTES
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft import kernel as draft_kernel
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.draft.plan import default_settings as draft_settings
from kimi.kernels.plan import Plan, default_settings
from kimi.kernels.refs import state_shapes
from kimi.models import capacity_for
from kimi.prefill.chunks import chunk_sizes
from kimi.prefill.layer import Span
from kimi.prefill.prompt import Caches, Prompt
from kimi.runtime.model import SPLIT, WHOLE, DeviceModel, ModelWeights, require_drafter
from kimi.runtime.prompts import BatchPrompts
from kimi.runtime.state import empty_state, placed, state_shapes_of, state_specs


class KernelModel:
    """Runs a placed model with the kernels; see `decoding.decoder.Runner`."""

    steps_per_call = 8

    def __init__(self, placed: DeviceModel):
        self.placed = placed
        self._scorers: dict[int, tuple[Plan, Callable[..., Any]]] = {}

    def __repr__(self) -> str:
        return f"KernelModel({self.placed})"

    @property
    def config(self) -> ModelConfig:
        """The target model's config."""
        return self.placed.config

    @property
    def block_size(self) -> int:
        """Rows of a drafted block, the newest token's included; 1 without a drafter."""
        layout = self.placed.draft_layout
        return 1 if layout is None else layout.config.block_size

    def backend(self, capacity: int, sequences: int, drafts: bool) -> "KernelBackend":
        """See `decoding.decoder.Runner.backend`.

        Raises:
          InputError: drafts for several sequences, which these kernels cannot do yet.
          PlanError: the model, its context or its mesh cannot be served.
        """
        if not drafts:
            return PlainBackend(self.placed, capacity, sequences)
        if sequences > 1:
            raise InputError(
                "verify: expected 'off' for several prompts with the kernels, which draft for one "
                f"sequence, found {sequences} prompts"
            )
        return BlockBackend(self.placed, capacity)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits behind each of the ids, float32 [T, V], in blocks of eight rows, as
        verification computes them. A program for every step of capacity.

        Raises:
          InputError: more ids than the model's context.
          PlanError: the model cannot be served.
        """
        model, capacity = self.placed, capacity_for(self.config, len(ids))
        if capacity not in self._scorers:
            self._scorers[capacity] = self._scorer(capacity)
        plan, score = self._scorers[capacity]
        state, found = empty_state(model, plan, None), []
        for start in range(0, len(ids), SUBLANES):
            part = ids[start : start + SUBLANES]
            tokens = np.zeros(SUBLANES, np.int32)
            tokens[: len(part)] = part
            state, logits = score(model.arrays, state, tokens, np.int32(len(part)))
            shares = np.asarray(jax.device_get(logits))[:, : len(part)]
            found.append(np.concatenate(list(shares), -1))
        return np.concatenate(found)

    def _scorer(self, capacity: int) -> tuple[Plan, Callable[..., Any]]:
        """The plan of blocks of eight rows, and its program over all ranks."""
        layout = self.placed.layout
        plan = Plan(layout, default_settings(layout, SUBLANES, capacity))
        target, specs = Target(plan, self.placed.interpreted), state_specs(drafts=False)

        def block(
            weights: ModelWeights, state: DecodeState, tokens: Array, valid: Array
        ) -> tuple[DecodeState, Array]:
            state, rows = target(weights, state, tokens, valid)
            return replace(state, accepted=valid[None]), rows.logits[None]

        return plan, self.placed.over_ranks(block, specs, 2, (specs, SPLIT))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """What the target's kernel returns for the rows of a step.

    Attributes:
      best: int32 [8], the greedy choice after each row, the same on all ranks.
      finite: bool [8], whether the row's logits have a largest one; likewise.
      logits: float32 [8, vocabulary of the rank]: this rank's own part.
    """

    best: Array
    finite: Array
    logits: Array


@dataclass(frozen=True)
class Target:
    """The target's kernel of a plan, on one rank: to be used inside `shard_map`.

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
        self, weights: ModelWeights, state: DecodeState, tokens: Array, valid: Array
    ) -> tuple[DecodeState, Rows]:
        """Runs rows behind the accepted ones of the last step.

        Args:
          weights: one rank's, each [1, ...].
          state: one rank's.
          tokens: int32 [rows].
          valid: int32 [], how many rows count, the first ones.

        Returns: the state before any of the rows is accepted; and the rows' results.
        """
        missing, caches = SUBLANES - tokens.shape[0], state.caches
        lengths = state.positions
        numbers = jnp.concatenate([
            jnp.pad(tokens, (0, missing)),
            jnp.pad(lengths, (0, SUBLANES - lengths.shape[0])),
            jnp.stack([state.accepted[0], valid]),
        ]).astype(jnp.int32)  # fmt: skip
        own = (w[0] for w in weights.target)
        kda, cache, best, value, logits, taps = self._kernel(
            numbers, *own, caches.kda[0], caches.cache[0]
        )
        share = self.plan.layout.mesh.local(self.plan.layout.config.vocab_size)
        rows = Rows(best[:, 0], value[:, 0] > -jnp.inf, logits[:, :share])
        caches = replace(
            caches, kda=kda[None], cache=cache[None], taps=None if caches.taps is None else taps
        )
        return replace(state, caches=caches, lengths=lengths), rows

    def sharded(self, rows: Rows, count: int) -> Logits:
        """The logits of the first `count` rows."""
        axis = None if self.plan.layout.mesh.ranks == 1 else AXIS
        return Logits(rows.logits[:count], axis)


class _KernelBackend:
    """What both forms share, see `decoding.backend.Backend`.

    Attributes:
      plan: of the target's kernel.
      draft_plan: of the drafter's, or None.
    """

    def __init__(self, model: DeviceModel, plan: Plan, draft: DraftPlan | None):
        self.model, self.plan, self.draft_plan = model, plan, draft
        self.vocab_size, self.weights = model.config.vocab_size, model.arrays
        self.sequences = plan.rows.sequences
        self._target = Target(plan, model.interpreted)

    def empty(self) -> DecodeState:
        """The state before the first token."""
        return empty_state(self.model, self.plan, self.draft_plan)

    def shapes(self) -> DecodeState:
        """The shapes and dtypes of a state."""
        return state_shapes_of(self.plan, self.draft_plan)

    def place(self, state: DecodeState) -> DecodeState:
        """The state, sharded over the ranks as compiled programs return it."""
        return placed(self.model, state)

    def compile(
        self, name: str, function: Callable[..., Any], others: int, extra: Any = None
    ) -> Callable[..., Any]:
        """See `decoding.backend.Backend.compile`: over all ranks."""
        del name
        specs = state_specs(drafts=self.draft_plan is not None)
        results = specs if extra is None else (specs, WHOLE)
        return self.model.over_ranks(function, specs, others, results)


class BlockBackend(_KernelBackend):
    """One sequence in drafted blocks.

    Args:
      model: placed, with a drafter.
      capacity: tokens of a sequence at most, prompt included.

    Raises:
      InputError: no drafter.
      PlanError: the model, its context or its mesh cannot be served.
    """

    def __init__(self, model: DeviceModel, capacity: int):
        drafter, layout = require_drafter(model), model.layout
        self.block = drafter.config.block_size
        draft = DraftPlan(drafter, draft_settings(drafter, capacity))
        plan = Plan(layout, default_settings(layout, self.block, capacity, taps=model.taps))
        super().__init__(model, plan, draft)
        single = default_settings(layout, 1, capacity, taps=model.taps, rollback=True)
        self._single = Target(Plan(layout, single), model.interpreted)
        self._draft = draft_kernel.build(draft, model.interpreted)
        self._prompt = Prompt(plan, draft, model.interpreted)
        self.chunk_sizes = chunk_sizes(plan)

    def widths(self, rows: frozenset[int]) -> tuple[int, ...]:
        """See `decoding.backend.Backend.widths`: a single row has a kernel of its own, so that a
        step that is not worth drafting for costs what plain decoding does."""
        return (1, self.block) if 1 in rows else (self.block,)

    def prefill(
        self, weights: ModelWeights, state: DecodeState, sequence: Array, tokens: Array,
        count: Array,
    ) -> DecodeState:  # fmt: skip
        """See `decoding.backend.Backend.prefill`."""
        del sequence  # there is one
        own: ModelWeights = jax.tree.map(lambda w: w[0], weights)
        assert own.drafter is not None
        held, start = state.caches, state.positions[0]
        assert held.draft is not None and held.taps is not None
        caches = Caches(held.kda[0], held.cache[0, :, 0], held.draft[0])
        found = self._prompt.prefill(
            own.target, own.drafter, caches, held.taps, state.accepted[0], tokens,
            Span(start, count),
        )  # fmt: skip
        held = replace(
            held, kda=found.kda[None], cache=found.cache[None, :, None],
            draft=found.context[None],
        )  # fmt: skip
        return replace(
            state, caches=held, lengths=(start + count)[None],
            accepted=jnp.zeros_like(state.accepted),
        )  # fmt: skip

    def draft(self, weights: ModelWeights, state: DecodeState) -> tuple[DecodeState, Proposal]:
        """See `decoding.backend.Backend.draft`. First commits the accepted rows to the KV cache."""
        caches = state.caches
        assert caches.draft is not None and weights.drafter is not None
        numbers = jnp.stack([state.tokens[0], state.lengths[0], state.accepted[0]])
        own = (w[0] for w in weights.drafter)
        cache, tokens, confidence = self._draft(
            numbers.astype(jnp.int32), caches.taps, *own, caches.draft[0]
        )
        state = replace(state, caches=replace(caches, draft=cache[None]))
        return state, Proposal(tokens[None, :, 0], confidence[None, :, 0])

    def verify(
        self, weights: ModelWeights, state: DecodeState, rows: Array, valid: Array,
        widths: tuple[int, ...], decide: Decide,
    ) -> tuple[DecodeState, Decision]:  # fmt: skip
        """See `decoding.backend.Backend.verify`."""
        tokens, count = rows[0], valid[0]
        if 1 in widths:
            state, found = lax.cond(
                count == 1,
                lambda state: self._single(weights, state, tokens[:1], count),
                lambda state: self._target(weights, state, tokens, count),
                state,
            )
        else:
            state, found = self._target(weights, state, tokens, count)
        decision = decide(
            Scores(
                found.best[None, : self.block],
                found.finite[None, : self.block],
                self._target.sharded(found, self.block),
            )
        )
        return replace(state, tokens=decision.newest, accepted=decision.accepted), decision


class PlainBackend(_KernelBackend):
    """Several sequences token by token; or one, in the kernel's fastest form.

    Args:
      model: placed.
      capacity: tokens of a sequence at most, prompt included.
      sequences: 1 to 8.

    Raises:
      PlanError: the model, its context or its mesh cannot be served.
    """

    block = 1

    def __init__(self, model: DeviceModel, capacity: int, sequences: int):
        layout = model.layout
        plan = Plan(layout, default_settings(layout, sequences, capacity, sequences))
        super().__init__(model, plan, None)
        block = Plan(layout, default_settings(layout, 1, capacity, rollback=True))
        self._prompts = BatchPrompts(plan, block, model.interpreted)
        self.chunk_sizes = chunk_sizes(block)

    def widths(self, rows: frozenset[int]) -> tuple[int, ...]:
        """See `decoding.backend.Backend.widths`."""
        del rows
        return (1,)

    def prefill(
        self, weights: ModelWeights, state: DecodeState, sequence: Array, tokens: Array,
        count: Array,
    ) -> DecodeState:  # fmt: skip
        """See `decoding.backend.Backend.prefill`."""
        return self._prompts.prefill(weights, state, sequence, tokens, count)

    def draft(self, weights: ModelWeights, state: DecodeState) -> tuple[DecodeState, Proposal]:
        """Not called: there is no drafter."""
        raise AssertionError("plain decoding drafts nothing")

    def verify(
        self, weights: ModelWeights, state: DecodeState, rows: Array, valid: Array,
        widths: tuple[int, ...], decide: Decide,
    ) -> tuple[DecodeState, Decision]:  # fmt: skip
        """See `decoding.backend.Backend.verify`. A sequence that has ended is computed as well, and
        stays where it is."""
        del valid, widths
        count = self.sequences
        state, found = self._target(weights, state, rows[:, 0], jnp.int32(count))
        decision = decide(
            Scores(
                found.best[:count, None],
                found.finite[:count, None],
                self._target.sharded(found, count),
            )
        )
        # Each sequence's row counts at once: the kernel has nothing to roll back.
        lengths = state.lengths + decision.accepted
        return replace(state, tokens=decision.newest, lengths=lengths), decision


KernelBackend = BlockBackend | PlainBackend


def snapshot_bytes(plan: Plan, draft: DraftPlan) -> int:
    """HBM bytes of a snapshot on one rank: KDA records, the drafter's ring, pending taps."""
    records, _ = state_shapes(plan)["kda"]
    taps = (len(plan.settings.taps), SUBLANES, plan.layout.config.hidden_size)
    return WORD_BYTES * sum(math.prod(s) for s in (records, draft.cache.shape, taps))
