"""The draft kernel on one rank, against the reference in float32."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import DATA
from tests.interpret.draft_oracle import golden_drafter, golden_oracle
from tests.interpret.draft_session import DraftSession
from tests.tolerances import DRAFT_CONFIDENCE

WINDOW = 200  # of 256 slots: some are dead, and rows straddle the end of the ring


@pytest.fixture(scope="module")
def sliding():
    """A small drafter with a window: its kernel, its reference, its configuration."""
    config, target, tensors = golden_drafter("dspark_sliding", sliding_window=WINDOW)
    return DraftSession(config, target, tensors), golden_oracle(config, tensors), config


def random_taps(config, count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, config.tap_width), np.float32)


def run(session, oracle, taps, kept, fill=0.0):
    """Steps that keep so many rows each; every step is checked. Returns all results."""
    done, found = 0, []
    for count in kept:
        new = taps[done : done + count]
        done += count
        anchor = done % oracle.state.positions.shape[0] + 3
        tokens, confidence = session.step(anchor, new, fill)
        found.append((tokens, confidence))
        oracle.check(anchor, new, tokens, confidence)
    return found


def test_the_golden_of_speculators():
    """The block that speculators drafts, with and without a window, from the golden's own taps."""
    for name in ("dspark_sliding", "dspark_full"):
        config, target, tensors = golden_drafter(name)
        io = np.load(DATA / name / "io.npz")
        anchor = int(io["anchor"])
        session = DraftSession(config, target, tensors, context=64)
        for start in range(0, anchor - 8, 8):
            session.step(0, io["aux"][start : start + 8])
        left = io["aux"][session.length : anchor]
        tokens, confidence = session.step(int(io["ids"][anchor]), left)
        np.testing.assert_array_equal(tokens, io["tokens"])
        assert np.abs(confidence - io["confidence"]).max() <= DRAFT_CONFIDENCE


def test_every_number_of_rows_and_a_ring_that_wraps(sliding):
    """The ring of 256 slots ends inside a block of rows, twice; nothing in the window is lost."""
    session, oracle, config = sliding
    session.restart()
    oracle.restart()
    kept = [0, 1, 2, 3, 4, 5, 6, 7, *[8] * 27, 5, 8, 3, 1, 0, *[8] * 31, 2, 7]
    run(session, oracle, random_taps(config, sum(kept)), kept)
    assert session.length > 2 * session.plan.cache.slots
    oracle.check_context(session)


def test_what_is_dead_may_be_anything(sliding):
    """Empty slots and rows that are not committed: NaN gives bit for bit what zeros give."""
    session, oracle, config = sliding
    kept = [0, 3, 8, 1, *[8] * 20, 5]
    taps, results = random_taps(config, sum(kept)), []
    for fill in (0.0, np.nan):
        session.restart(fill)
        oracle.restart()
        results.append(run(session, oracle, taps, kept, fill))
    for zeros, nans in zip(*results, strict=True):
        np.testing.assert_array_equal(zeros, nans)
    oracle.check_context(session)


def test_rows_that_are_not_committed_leave_no_trace():
    """With a window as long as the ring they would take the place of the oldest positions."""
    config, target, tensors = golden_drafter("dspark_sliding", sliding_window=256)
    session, oracle = DraftSession(config, target, tensors), golden_oracle(config, tensors)
    assert session.plan.cache.slots == config.sliding_window
    kept = [*[8] * 34, 0, 1, 5, 0, 3, *[8] * 28, 2]
    run(session, oracle, random_taps(config, sum(kept)), kept, np.nan)
    oracle.check_context(session)


def test_the_window_ends_where_it_should(sliding):
    """The oldest position in the window counts, and the one before it does not."""
    session, oracle, config = sliding
    session.restart()
    oracle.restart()
    kept = [8] * 30
    run(session, oracle, random_taps(config, sum(kept)), kept)
    none = random_taps(config, 0)
    before, context = session.step(3, none), np.asarray(session.context)
    oldest = session.length - WINDOW

    def disturbed(position):
        slot = position % session.plan.cache.slots
        words = context.copy()
        words[:, slot // 128, :, slot % 128] = 0x43804380  # 256 in both halves
        session.context = jnp.asarray(words)
        return session.step(3, none)

    np.testing.assert_array_equal(disturbed(oldest - 1), before)
    assert np.abs(disturbed(oldest)[1] - before[1]).max() > 1e-3
