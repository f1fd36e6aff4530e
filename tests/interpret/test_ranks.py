"""Several ranks, with the exchanges inside the kernel: the same as one."""

import numpy as np
import pytest

from tests.interpret.devices import require_devices
from tests.interpret.session import Session
from tests.tolerances import KERNEL_RANKS, KERNEL_RANKS_TYPICAL

STEPS = 24


@pytest.mark.parametrize(
    "ranks",
    [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(8, marks=pytest.mark.slow)],
)
def test_ranks_agree_with_one(tiny, tensors, prompt, greedy, expected, ranks):
    """All ranks give bit for bit the same (see `Session.step`), and what one rank gives."""
    require_devices(ranks)
    session = Session(tiny.config, tensors, ranks)
    tokens = [*prompt, *greedy[:-1]]
    ids, logits, _ = session.run(tokens[:STEPS])
    np.testing.assert_array_equal(ids, expected[0][:STEPS])
    errors = np.abs(logits - expected[1][:STEPS]).max(-1) / np.abs(expected[1]).max()
    assert errors.max() <= KERNEL_RANKS, errors.max()
    assert np.median(errors) <= KERNEL_RANKS_TYPICAL, np.median(errors)
