"""Acceptance that is pretended, for timing."""

import numpy as np
import pytest

from kimi.decoding.loop import forced_accepted
from kimi.decoding.sampling import Sampling
from kimi.decoding.schedule import Fixed
from kimi.errors import InputError


def accepted(length, steps, live):
    found = [forced_accepted(np.int32(i), np.float32(length), np.int32(live)) for i in range(steps)]
    return np.array(found)


@pytest.mark.parametrize("length", [1, 1.25, 3.5, 5.1, 8])
def test_the_mean_is_what_was_asked_for(length):
    found = accepted(length, 40, 8)
    assert abs((found + 1).sum() - 40 * length) <= 1
    assert set(found + 1) <= {int(np.floor(length)), int(np.ceil(length))}


def test_never_more_than_was_verified():
    assert (accepted(8, 5, 3) == 2).all()
    assert (accepted(1, 5, 1) == 0).all()


def test_steps_go_on_counting_across_calls():
    """3.5 in calls of one step each: 3, 4, 3, 4; not 3 forever."""
    assert accepted(3.5, 4, 8).tolist() == [2, 3, 2, 3]


def test_sampling_is_refused(tiny):
    decoder = tiny.decoder(256, forced=2.0)
    with pytest.raises(InputError, match="expected greedy decoding, found sampling"):
        decoder.generate([1], 4, sampling=Sampling(1.0), schedule=Fixed(4))
