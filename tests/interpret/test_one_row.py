"""One rank, one row: the kernel against the reference in float32."""

import numpy as np

from tests.tolerances import (
    KERNEL_LOGITS,
    KERNEL_LOGITS_TYPICAL,
    KERNEL_TAPS,
    KERNEL_TAPS_TYPICAL,
)


def test_greedy_tokens_of_a_word_problem(expected, prompt, greedy):
    """64 tokens, each from the same past as the reference's."""
    np.testing.assert_array_equal(expected[0][len(prompt) - 1 :], greedy)


def check(actual, wanted, worst, typical):
    """Rows, relative to the largest expected value."""
    errors = np.abs(actual - wanted).max(-1) / np.abs(wanted).max()
    assert errors.max() <= worst, errors.max()
    assert np.median(errors) <= typical, np.median(errors)


def test_logits_of_every_position(expected, forward):
    """Prompt and continuation."""
    check(expected[1], forward[0], KERNEL_LOGITS, KERNEL_LOGITS_TYPICAL)


def test_taps_of_every_position(expected, forward):
    """The streams that the drafter reads, one by one."""
    taps = forward[1].reshape(expected[2].shape)
    for i in range(taps.shape[1]):
        check(expected[2][:, i], taps[:, i], KERNEL_TAPS, KERNEL_TAPS_TYPICAL)
