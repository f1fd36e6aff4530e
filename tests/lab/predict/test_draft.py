"""The draft kernel compiles for TPU v7 at the published size, and its predicted time."""

import pytest

from kimi.kernels.chip import TPU_V7
from kimi.lab.predict.launch import Built, Target, compile_targets
from kimi.lab.predict.simulate import simulate
from tests.lab.predict.conftest import ROOT

GOAL_US = 250
# Two of the block's rows and taps; two pairs in each of five layers; the anchor and eight tokens.
EXCHANGES = 2 + 5 * 4 + 9


@pytest.mark.slow
def test_it_compiles_and_is_fast_enough():
    """25 s. It moves a 32nd of 7.06 GB (all weights but embedding and w1, as bfloat16), and beside
    it padding of tiles, keys and values held twice, the context and w1."""
    (built,) = compile_targets([Target("tests.lab.predict.draft:draft")], path=[str(ROOT)])
    assert isinstance(built, Built), built
    kernel = built.kernel("draft")
    assert kernel.peak_bytes("vmem") < TPU_V7.vmem_bytes
    (prediction,) = simulate(kernel.program)
    assert not prediction.problems, prediction.problems
    assert prediction.us < GOAL_US, prediction.us
    # The embedding and the fuse exchange are under way together: one round.
    assert prediction.exchange_rounds in (EXCHANGES - 1, EXCHANGES)
    assert 0.23e9 < prediction.hbm_bytes < 0.25e9
