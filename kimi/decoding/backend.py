"""What the decoding loop asks of a model: `prefill`, `draft`, `verify`, and compiling.

Two backends exist: `decoding.reference` runs the plain JAX modules, `runtime.backend` the kernels.
Letters of shapes as in `decoding.requests`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
from jax import Array

from kimi.decoding.drawing import Logits
from kimi.decoding.state import DecodeState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Proposal:
    """A drafted block: int32 [B, K] candidates and their float32 [B, K] confidence."""

    tokens: Array
    confidence: Array


@dataclass(frozen=True)
class Scores:
    """What the target says about the rows of a step.

    Attributes:
      best: int32 [B, R], the greedy choice after each row.
      finite: bool [B, R], whether the row's logits are numbers.
      logits: float32 [B * R, v], sharded over ranks.
    """

    best: Array
    finite: Array
    logits: Logits


class Decision(NamedTuple):
    """What becomes of a step's rows.

    Attributes:
      newest: int32 [B], the token behind the accepted rows.
      accepted: int32 [B], the rows that stay: the newest token before the step and the drafts that
        were emitted. 0 leaves the sequence where it was.
      emitted: more that the loop wants to know.
    """

    newest: Array
    accepted: Array
    emitted: Any


Decide = Callable[[Scores], Decision]


class Backend(Protocol):
    """A model for `sequences` sequences side by side.

    Attributes:
      vocab_size: ids that it knows.
      sequences: B.
      block: R, the most rows of a sequence; 1 without a drafter.
      chunk_sizes: tokens of a compiled prefill, ascending.
      weights: a tree of arrays, the first argument of everything compiled.
    """

    vocab_size: int
    sequences: int
    block: int
    chunk_sizes: tuple[int, ...]
    weights: Any

    def widths(self, rows: frozenset[int]) -> tuple[int, ...]:
        """The compiled numbers of rows, ascending, for steps that verify any of `rows`."""

    def empty(self) -> DecodeState:
        """The state before the first token, on the devices."""

    def shapes(self) -> DecodeState:
        """The shapes and dtypes of a state."""

    def place(self, state: DecodeState) -> DecodeState:
        """The state as compiled programs return it: placed otherwise, as small arrays of the host
        are, it would compile everything again."""

    def compile(
        self, name: str, function: Callable[..., Any], others: int, extra: Any = None
    ) -> Callable[..., Any]:
        """A compiled `function` of (weights, state, *others), which donates the state.

        Args:
          name: of the function, unique among those of the backend.
          function: traced. Returns a state; or a state and a tree like `extra`.
          others: how many arguments follow, the same on all ranks.
          extra: a tree of the form of the second result, or None if there is none.
        """

    def prefill(
        self, weights: Any, state: DecodeState, sequence: Array, tokens: Array, count: Array
    ) -> DecodeState:
        """Traced: a sequence consumes the first `count` of tokens [T] int32."""

    def draft(self, weights: Any, state: DecodeState) -> tuple[DecodeState, Proposal]:
        """Traced: drafts a block behind each newest token."""

    def verify(
        self,
        weights: Any,
        state: DecodeState,
        rows: Array,
        valid: Array,
        widths: tuple[int, ...],
        decide: Decide,
    ) -> tuple[DecodeState, Decision]:
        """Traced: feeds rows, lets `decide` choose how many stay, and rolls back the others.

        Args:
          rows: int32 [B, R], each sequence's newest token and drafts.
          valid: int32 [B], 1 to R: the rows that count.
          widths: of `widths`: how many rows are computed at most; the least that suffices.
          decide: gets scores of as many rows as are computed, so 1 to R; called once a width.

        Returns: the state, with `newest` as its tokens, and the decision.
        """
