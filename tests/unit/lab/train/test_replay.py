import numpy as np

from kimi.lab.train.generation import Sequences
from kimi.lab.train.replay import Proposals, replay


def case(drafts: dict[int, list[int]]):
    """Sequence 1 2 3 4 5 6 7 8 (stop at 8), prompt 1 2, blocks of four drafts."""
    ids = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 0, 0]], np.int32)
    tokens = np.full((1, 10, 4), 99, np.int32)
    for anchor, row in drafts.items():
        tokens[0, anchor] = row
    confidence = np.arange(40, dtype=np.float32).reshape(1, 10, 4)
    return replay(Sequences(ids, np.array([2]), np.array([8])), Proposals(tokens, confidence))


def test_nothing_accepted_is_plain_decoding():
    found = case({})
    assert (found.steps, found.tokens) == (6, 6)
    assert found.confidence.tolist() == [4, 8, 12, 16, 20, 24] and not found.accepted.any()


def test_the_last_draft_is_never_verified():
    found = case({1: [3, 4, 5, 6], 5: [7, 8, 99, 99]})
    # Three drafts and one token more, then two drafts up to the stop; a third is beyond it.
    assert (found.steps, found.tokens) == (2, 6)
    assert found.confidence.tolist() == [4, 5, 6, 20, 21] and found.accepted.all()


def test_a_refused_draft_ends_a_step():
    found = case({1: [3, 99, 5, 6]})
    assert (found.steps, found.tokens) == (5, 6)
    assert found.accepted.tolist() == [True, False, False, False, False, False]
    assert found.acceptance_length == 6 / 5
