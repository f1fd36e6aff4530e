"""One rank, one row: the kernel against the reference in float32."""

import numpy as np
import pytest

from tests.tolerances import KERNEL_LOGITS, KERNEL_LOGITS_TYPICAL

pytestmark = pytest.mark.slow  # minutes of compilation: see the README


def test_greedy_tokens_of_a_word_problem(expected, prompt, greedy):
    """32 tokens, each from the same past as the reference's."""
    np.testing.assert_array_equal(expected[0][len(prompt) - 1 :], greedy)


def test_logits_of_every_position(tiny, expected, logits):
    """Prompt and continuation."""
    scale = np.abs(logits).max()
    errors = np.abs(expected[1] - logits).max(-1) / scale
    assert errors.max() <= KERNEL_LOGITS, errors.max()
    assert np.median(errors) <= KERNEL_LOGITS_TYPICAL, np.median(errors)
