"""Two ranks on the TPU interpreter: it stops at a race, and all memory is NaN to begin with."""

import jax
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels import collectives
from kimi.kernels.program import kda, mla
from tests.interpret.devices import require_devices
from tests.interpret.session import Session
from tests.interpret.small import small_config, small_tensors

TOKENS = (5, 12)
# Every copy needs a clock of its own: by default a few are drawn at random, and races stay unseen.
CLOCKS = 1024


@pytest.fixture(scope="module")
def expected():
    """The plain interpreter."""
    return run(True)


def run(interpret, ranks=2):
    require_devices(ranks)
    config = small_config()
    session = Session(config, small_tensors(config), ranks, context=256, interpret=interpret)
    return [session.step([token]) for token in TOKENS]


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
    jax.clear_caches()
    pltpu.reset_tpu_interpret_mode_state()


@pytest.mark.parametrize("mode", ["on_wait", "eager"])
def test_no_races(expected, watched, mode):
    """Copies land when they are waited for, or at once: both must give the same."""
    for actual, wanted in zip(run(watched(mode)), expected, strict=True):
        np.testing.assert_array_equal(actual[0], wanted[0])
        np.testing.assert_allclose(actual[2], wanted[2], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", ["on_wait", "eager"])
def test_no_races_over_tiles_of_the_cache(watched, mode):
    """Each of two slots is filled again and again, while the other is attended to."""
    found = [_behind_a_past(interpret) for interpret in (watched(mode), True)]
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-3)


def test_a_tile_that_is_read_too_early_is_caught(watched, monkeypatch):
    """Only the first tile of all is waited for: the others' slots are those of a loop."""
    arrive = mla._arrive

    def first_only(k, item, slot):
        if not isinstance(slot, jax.core.Tracer):
            arrive(k, item, slot)

    monkeypatch.setattr(mla, "_arrive", first_only)
    with pytest.raises(Exception, match="RACE DETECTED"):
        _behind_a_past(watched("eager"))


def _behind_a_past(interpret):
    """Logits of one rank, with six tiles in two slots."""
    config = small_config()
    session = Session(config, small_tensors(config), context=1024, interpret=interpret,
                      cache_positions=128, cache_slots=2)  # fmt: skip
    session.remember([700])
    return session.step([5])[2]


def test_a_missing_wait_for_peers_is_caught(watched, monkeypatch):
    """What peers send is read too early. (Where copies land when they are waited for, they would
    never: no race.)"""
    waits = collectives.wait
    left_out = "attention_gather"
    monkeypatch.setattr(collectives, "wait", lambda k, n: None if n == left_out else waits(k, n))
    with pytest.raises(Exception, match="RACE DETECTED"):
        run(watched("eager"))


def test_a_state_that_is_read_too_early_is_caught(watched, monkeypatch):
    class Skipped:
        def wait(self):
            """Returns at once."""

        def start(self):
            """Starts nothing."""

    monkeypatch.setattr(kda, "kda_load", lambda k, state: Skipped())
    with pytest.raises(Exception, match="RACE DETECTED"):
        run(watched("eager"), ranks=1)
