"""Blocks of rows with roll-back, and batches: the same as one row at a time."""

import numpy as np
import pytest

from tests.interpret.session import Session
from tests.tolerances import KERNEL_FORMS, KERNEL_FORMS_TYPICAL

ROWS = 8


def close(actual, expected):
    """Rows of logits, relative to the largest expected value."""
    errors = np.abs(actual - expected).max(-1) / np.abs(expected).max()
    assert errors.max() <= KERNEL_FORMS, errors.max()
    assert np.median(errors) <= KERNEL_FORMS_TYPICAL, np.median(errors)


def same_choice(ids, expected):
    """The greedy tokens of `expected` logits; or, where two are nearly as large, either."""
    best, own = expected.max(-1), expected[np.arange(len(ids)), ids]
    assert ((best - own) / np.abs(expected).max()).max() <= KERNEL_FORMS_TYPICAL
    assert (best == own).mean() >= 0.8  # of a word problem: a tie is rare


@pytest.fixture(scope="module")
def block(tiny, tensors):
    """Eight rows of one sequence; tests begin with `reset`."""
    return Session(tiny.config, tensors, rows=ROWS)


def blocks_with_rejected_rows(block, rows, prompt, greedy, expected):
    """Keeps 1, 2, .. of `rows` rows; rejected ones hold other tokens and must leave no trace."""
    block.reset(dead=np.nan)
    tokens = [*prompt, *greedy[:-1]]
    done, ids, logits, kept = 0, [], [], 0
    while done + rows <= len(tokens):
        kept = kept % rows + 1
        wrong = [(t + 7) % 1000 for t in tokens[done + kept : done + rows]]
        found = block.step([*tokens[done : done + kept], *wrong])
        block.keep(kept)
        ids.append(found[0][:kept])
        logits.append(found[2][:kept])
        done += kept
    ids, own = np.concatenate(ids), len(prompt) - 1
    same_choice(ids, expected[1][:done])
    np.testing.assert_array_equal(ids[own:], expected[0][own:done])  # what the model itself says
    close(np.concatenate(logits), expected[1][:done])


def test_blocks_of_which_any_number_of_rows_is_kept(block, prompt, greedy, expected):
    blocks_with_rejected_rows(block, ROWS, prompt, greedy, expected)


def test_fewer_live_rows_than_the_block_has(block, prompt, expected):
    """Caches and records that hold NaN wherever nothing was written."""
    block.reset(dead=np.nan)
    done, found = 0, []
    for live in (1, 3, 8, 2, 4, 1, 7):
        ids, _, logits = block.step(prompt[done : done + live])
        found.append((ids, logits))
        done += live
    ids, logits = (np.concatenate(x) for x in zip(*found, strict=True))
    same_choice(ids, expected[1][:done])
    close(logits, expected[1][:done])


def test_single_rows_between_blocks(tiny, tensors, block, prompt, greedy, expected):
    """Two kernels take turns on one state; what a block rejects leaves no trace in single rows."""
    single = Session(tiny.config, tensors, rollback=True)
    tokens = [*prompt, *greedy[:-1]]
    block.reset(dead=np.nan)
    sessions, done, ids, logits = {1: single, ROWS: block}, 0, [], []
    last = block
    for rows, kept in [(1, 1), (8, 3), (1, 1), (1, 1), (8, 8), (8, 1), (1, 1), (8, 5), (1, 1)] * 2:
        session = sessions[rows]
        session.follow(last)
        wrong = [(t + 7) % 1000 for t in tokens[done + kept : done + rows]]
        found = session.step([*tokens[done : done + kept], *wrong])
        session.keep(kept)
        ids.append(found[0][:kept])
        logits.append(found[2][:kept])
        last, done = session, done + kept
    same_choice(np.concatenate(ids), expected[1][:done])
    close(np.concatenate(logits), expected[1][:done])


@pytest.mark.slow
def test_blocks_of_two(tiny, tensors, prompt, greedy, expected):
    block = Session(tiny.config, tensors, rows=2)
    blocks_with_rejected_rows(block, 2, prompt, greedy, expected)


@pytest.mark.parametrize("sequences", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_sequences_of_a_batch_do_not_meet(tiny, tensors, one_row, prompt, sequences):
    """Sequences of their own, each as if alone; caches hold NaN where nothing was written."""
    steps = 8
    session = Session(tiny.config, tensors, rows=sequences, sequences=sequences)
    session.reset(dead=np.nan)
    texts = [(prompt[i:] + prompt[:i])[:steps] for i in range(0, 3 * sequences, 3)]
    found = [session.step(list(tokens)) for tokens in zip(*texts, strict=True)]
    for row in range(0, sequences, 1 if sequences < 8 else 3):
        _, logits, _ = one_row.run(texts[row])
        same_choice([f[0][row] for f in found], logits)
        close(np.stack([f[2][row] for f in found]), logits)
