"""Two ranks on the TPU interpreter: it stops at a race, and all memory is NaN to begin with."""

import jax
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from tests.interpret.session import Session
from tests.interpret.small import small_config, small_tensors

pytestmark = pytest.mark.slow  # minutes of compilation: see the README


TOKENS = (5, 12)
# Every copy needs a clock of its own: by default a few are drawn at random, and races stay unseen.
CLOCKS = 1024


@pytest.fixture(scope="module")
def expected():
    """The plain interpreter."""
    return run(True)


def run(interpret):
    config = small_config()
    session = Session(config, small_tensors(config), ranks=2, context=256, interpret=interpret)
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
