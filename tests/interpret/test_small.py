"""A small random model: both expert formats, and as many ranks as the slice has."""

import numpy as np
import pytest

from kimi.kernels.experts import ExpertFormat
from tests.interpret.devices import require_devices
from tests.interpret.session import Session
from tests.interpret.small import config_for, small_config, small_tensors
from tests.tolerances import KERNEL_RANKS

TOKENS = (5, 12, 700, 5)


def test_formats_hold_the_same_values():
    """FP8 experts give the tokens and nearly the logits of MXFP4 ones: the order of sums differs.

    With rows of a block, some of which share an expert and some of which are alone with theirs.
    """
    config = small_config()
    tensors, found = small_tensors(config), []
    for experts in ExpertFormat:
        session = Session(config, tensors, rows=4, context=256, expert_format=experts)
        found.append(session.step(list(TOKENS)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    scale = np.abs(found[0][2]).max()
    np.testing.assert_allclose(found[1][2], found[0][2], atol=1e-3 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4])
def test_thirty_two_ranks(rows):
    """The ranks of the slice, in its default mesh, agree with one rank."""
    require_devices(32)
    config = config_for(32)
    tensors, found = small_tensors(config), []
    for ranks in (1, 32):
        session = Session(config, tensors, ranks, rows=rows, context=256)
        found.append([session.step(list(TOKENS[i : i + rows])) for i in range(0, 4, rows)])
    for one, many in zip(*found, strict=True):
        np.testing.assert_array_equal(many[0], one[0])
        scale = np.abs(one[2]).max()
        np.testing.assert_allclose(many[2], one[2], atol=KERNEL_RANKS * scale)
