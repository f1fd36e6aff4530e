"""Blocks of rows with roll-back, and batches: the same as one row at a time."""

import numpy as np
import pytest

from tests.interpret.session import Session
from tests.tolerances import KERNEL_FORMS, KERNEL_FORMS_TYPICAL

pytestmark = pytest.mark.slow  # minutes of compilation: see the README


def close(actual, expected):
    """Rows of logits, relative to the largest expected value."""
    errors = np.abs(actual - expected).max(-1) / np.abs(expected).max()
    assert errors.max() <= KERNEL_FORMS, errors.max()
    assert np.median(errors) <= KERNEL_FORMS_TYPICAL, np.median(errors)


@pytest.fixture(scope="module")
def block(tiny, tensors):
    """Four rows of one sequence; tests begin with `reset`."""
    return Session(tiny.config, tensors, rows=4)


def test_blocks_of_which_any_number_of_rows_is_kept(block, prompt, greedy, expected):
    """Rejected rows hold other tokens and must leave no trace."""
    block.reset()
    tokens = [*prompt, *greedy[:-1]]
    done, ids, logits, kept = 0, [], [], 0
    while done + 4 <= len(tokens):
        kept = kept % 4 + 1
        wrong = [(t + 7) % 1000 for t in tokens[done + kept : done + 4]]
        found = block.step([*tokens[done : done + kept], *wrong])
        block.keep(kept)
        ids.append(found[0][:kept])
        logits.append(found[2][:kept])
        done += kept
    np.testing.assert_array_equal(np.concatenate(ids), expected[0][:done])
    close(np.concatenate(logits), expected[1][:done])


def test_fewer_live_rows_than_the_block_has(block, prompt, expected):
    block.reset()
    done = 0
    for live in (1, 3, 2, 4, 1):
        ids, _, logits = block.step(prompt[done : done + live])
        np.testing.assert_array_equal(ids, expected[0][done : done + live])
        close(logits, expected[1][done : done + live])
        done += live


def test_sequences_of_a_batch_do_not_meet(tiny, tensors, one_row, prompt):
    """Three sequences of their own."""
    steps = 12
    session = Session(tiny.config, tensors, rows=3, sequences=3)
    sequences = [prompt[:steps], prompt[5 : 5 + steps], prompt[::-1][:steps]]
    found = [session.step(list(tokens)) for tokens in zip(*sequences, strict=True)]
    for row, tokens in enumerate(sequences):
        ids, logits = one_row.run(tokens)
        np.testing.assert_array_equal([f[0][row] for f in found], ids)
        close(np.stack([f[2][row] for f in found]), logits)
