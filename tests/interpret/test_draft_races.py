"""The draft kernel on the TPU interpreter: it stops at a race; all memory is NaN to begin with."""

import contextlib

import jax
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels import collectives
from kimi.kernels.draft.program import layers
from tests.interpret.draft_oracle import golden_drafter, golden_oracle
from tests.interpret.draft_session import DraftSession

KEPT = (3, 8)  # the second step straddles two blocks
BEFORE = 120  # positions that are there already
# Every copy needs a clock of its own: by default a few are drawn at random, and races stay unseen.
CLOCKS = 1024


@pytest.fixture
def watched():
    """The TPU interpreter, set back afterwards."""

    def parameters(mode):
        return pltpu.InterpretParams(
            detect_races=True,
            uninitialized_memory="nan",
            dma_execution_mode=mode,
            vector_clock_size=CLOCKS,
        )

    yield parameters
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # a race, told once more at exit
        jax.effects_barrier()
    jax.clear_caches()
    pltpu.reset_tpu_interpret_mode_state()


def run(ranks, interpret):
    config, target, tensors = golden_drafter("dspark_sliding", sliding_window=200)
    session = DraftSession(config, target, tensors, ranks, interpret=interpret)
    oracle = golden_oracle(config, tensors)
    rng = np.random.default_rng(0)
    taps = rng.standard_normal((BEFORE + sum(KEPT), config.tap_width), np.float32)
    session.fill(oracle.extend(taps[:BEFORE]))
    done = BEFORE
    for count in KEPT:
        new = taps[done : done + count]
        done += count
        tokens, confidence = session.step(7, new, np.nan)
        oracle.check(7, new, tokens, confidence)
    oracle.check_context(session)


# Two ranks need devices of their own: see the README.
RANKS = [1, pytest.param(2, marks=pytest.mark.slow)]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("mode", ["on_wait", "eager"])
def test_no_races(watched, mode, ranks):
    """Copies land when they are waited for, or at once: both must agree with the reference."""
    run(ranks, watched(mode))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp_gather", "attention_gather"])
def test_a_missing_wait_is_caught(watched, monkeypatch, name):
    """What peers send is read too early. (Where copies land when they are waited for, they would
    never: no race.)"""
    waits = collectives.wait
    monkeypatch.setattr(collectives, "wait", lambda k, n: None if n == name else waits(k, n))
    with pytest.raises(Exception, match="RACE DETECTED"):
        run(2, watched("eager"))


def test_a_context_that_is_read_too_early_is_caught(watched, monkeypatch):
    monkeypatch.setattr(layers, "cache_load", lambda k, layer: Skipped())
    with pytest.raises(Exception, match="RACE DETECTED"):
        run(1, watched("eager"))


class Skipped:
    """A copy that nobody waits for."""

    def wait(self):
        """Returns at once."""
