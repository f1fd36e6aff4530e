"""The reference drafter, run beside the kernel step by step."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from kimi.checkpoint import DraftCheckpoint
from kimi.config import DraftConfig, ModelConfig
from kimi.kernels.chip import SUBLANES, round_up
from kimi.lab.train.weights import load_drafter
from kimi.reference.state import initial_draft_cache
from tests.conftest import DATA
from tests.packing import ring
from tests.tolerances import DRAFT_CONFIDENCE, DRAFT_CONTEXT, DRAFT_LOGITS


class Oracle:
    """A reference drafter with its context.

    Args:
      drafter: a `Dspark`.
      capacity: of a context without a window.
    """

    def __init__(self, drafter, capacity: int = 0):
        self._draft, self._heads = jax.jit(drafter.draft), jax.jit(drafter.heads)
        self._extend, self._capacity = jax.jit(drafter.extend), capacity
        self._config = drafter.config
        self.restart()

    def restart(self) -> None:
        """Back to before the first token."""
        self.state = initial_draft_cache(self._config, self._capacity, jnp.float32)

    def extend(self, taps: np.ndarray):
        """Adds committed tokens; returns the state."""
        rows = np.zeros(
            (max(SUBLANES, round_up(len(taps), SUBLANES)), self._config.tap_width), np.float32
        )
        rows[: len(taps)] = taps
        self.state = self._extend(jnp.asarray(rows), self.state, len(taps))
        return self.state

    def check(self, anchor: int, taps: np.ndarray, tokens: np.ndarray, confidence: np.ndarray):
        """Checks a step of the kernel, row by row, given the tokens that it chose before.

        Returns: whether all tokens are those that the reference drafts.
        """
        self.extend(taps)
        block = self._draft(jnp.int32(anchor), self.state)
        previous = jnp.asarray([anchor, *tokens[:-1]], jnp.int32)
        logits, _, odds = (np.asarray(x) for x in self._heads(block.hidden, previous))
        chosen = logits[np.arange(len(tokens)), tokens]
        short = (logits.max(-1) - chosen) / np.abs(logits).max()
        assert short.max() <= DRAFT_LOGITS, short.max()
        error = np.abs(confidence - 1 / (1 + np.exp(-odds))).max()
        assert error <= DRAFT_CONFIDENCE, error
        return bool((tokens == np.asarray(block.tokens)).all())

    def check_context(self, session) -> None:
        """All positions within the window are in the kernel's ring, on every rank."""
        length, layout = int(self.state.length), session.plan.layout
        window = self._config.sliding_window or length
        live = np.arange(max(0, length - window), length)
        there = live % len(self.state.positions)
        np.testing.assert_array_equal(np.asarray(self.state.positions)[there], live)
        contexts = np.asarray(session.context).reshape(layout.mesh.ranks, *session.plan.cache.shape)
        for rank, words in enumerate(contexts):
            heads = slice(*layout.key_heads(rank))
            found = ring.unpack(session.plan.cache, words)
            for actual, wanted in zip(found, (self.state.keys, self.state.values), strict=True):
                own = np.asarray(wanted)[:, there, heads]
                actual = actual[:, live % session.plan.cache.slots]
                error = np.abs(actual - own).max() / np.abs(own).max()
                assert error <= DRAFT_CONTEXT, error


def golden_drafter(name: str, **changes) -> tuple[DraftConfig, ModelConfig, dict]:
    """A drafter of `tests/data` with other settings, its tensors rounded to bfloat16."""
    store = DraftCheckpoint.open(DATA / name)
    tensors = {n: v.astype(ml_dtypes.bfloat16) for n, v in store.items()}
    target = ModelConfig.from_dir(DATA / "k3_tiny")
    target = dataclasses.replace(
        target, vocab_size=store.config.vocab_size, hidden_size=store.config.hidden_size
    )
    return dataclasses.replace(store.config, **changes), target, tensors


def golden_oracle(config: DraftConfig, tensors: dict, capacity: int = 0) -> Oracle:
    """The reference on the same tensors."""
    return Oracle(load_drafter(tensors, config), capacity)
