"""Prompts in chunks leave what token-by-token decoding leaves, on a small random model."""

import numpy as np
import pytest

from tests.interpret.prefill_session import Prefill
from tests.interpret.session import Session
from tests.interpret.small import small_config, small_tensors
from tests.tolerances import (
    KERNEL_FORMS,
    PREFILL_CHOICES,
    PREFILL_STATES,
    PREFILL_STATES_TYPICAL,
    PREFILL_TAPS,
    PREFILL_TAPS_TYPICAL,
)

CONTEXT = 384  # chunks of 128 only
COUNTS = (1, 3, 127, 128, 129, 255, 256, 257)  # around every border


class States:
    """What a session holds before its newest row, as numbers."""

    def __init__(self, session: Session):
        self.form, self.length = session.plan.record, int(session.lengths[0])
        kda, cache = (np.asarray(x) for x in session.state)
        kda = kda.reshape(-1, self.form.total, 128)
        self.recurrent_state = kda[:, : self.form.recurrent_rows, : self.form.width]
        tiles = kda[:, self.form.conv_row(0) : self.form.fresh].reshape(len(kda), -1, 8, 128)
        self.conv_state = tiles[:, :, 1 - self.form.kernel_size :]
        positions = cache.swapaxes(-1, -2).reshape(-1, cache.shape[-2])
        self.cache = positions[: self.length]

    def latents(self):
        """The live positions of the cache, float32."""
        halves = self.cache << np.uint32(16), self.cache & np.uint32(0xFFFF0000)
        return np.concatenate([h.view(np.float32) for h in halves], -1)


@pytest.fixture(scope="module")
def tokens():
    config = small_config()
    return np.random.default_rng(0).integers(0, config.vocab_size, max(COUNTS) + 1).tolist()


@pytest.fixture(scope="module")
def session():
    """A block of two rows."""
    config = small_config()
    return Session(config, small_tensors(config), rows=2, context=CONTEXT, taps=(0, 2, 3))


@pytest.fixture(scope="module")
def prefill(session):
    return Prefill(session)


@pytest.fixture(scope="module")
def decoded(session, tokens):
    """Token by token: logits behind every token, taps, and states before some tokens."""
    session.reset(dead=np.nan)
    logits, taps, states = [], [], {}
    for count, token in enumerate(tokens):
        logits.append(session.step([token], live=1)[2][0])
        taps.append(session.taps[:, 0])
        if count in COUNTS:
            states[count] = States(session)
    return np.stack(logits), np.stack(taps, 1), states


def close(actual, expected, worst, typical, others=0):
    """Relative to the largest expected value, over the rows of the first axes; `others` of them may
    have chosen other experts."""
    errors = np.abs(actual - expected).max(-1) / np.abs(expected).max()
    assert np.sort(errors.reshape(-1))[-1 - others] <= worst, errors.max()
    assert np.median(errors) <= typical, np.median(errors)


def equal_states(session, expected):
    """Memories, histories and latents before the newest row."""
    now = States(session)
    for name in ("recurrent_state", "conv_state"):
        for actual, want in zip(getattr(now, name), getattr(expected, name), strict=True):
            close(actual, want, PREFILL_STATES, PREFILL_STATES_TYPICAL)
    close(now.latents(), expected.latents(), PREFILL_STATES, PREFILL_STATES_TYPICAL)


@pytest.mark.parametrize("count", COUNTS)
def test_states_and_next_token(session, prefill, tokens, decoded, count):
    """Memories, histories, latents, taps, and the logits of the row behind; dead words are NaN."""
    logits, taps, states = decoded
    session.reset(dead=np.nan)
    found = prefill.feed(tokens[:count])
    for actual, expected in zip(found, taps[:, :count], strict=True):
        close(actual, expected, PREFILL_TAPS, PREFILL_TAPS_TYPICAL, count // PREFILL_CHOICES)
    ids, _, own = session.step([tokens[count]], live=1)
    equal_states(session, states[count])
    close(own, logits[count : count + 1], KERNEL_FORMS, KERNEL_FORMS)
    assert ids[0] == logits[count].argmax()


def test_padding_leaves_no_trace(session, prefill, tokens):
    """Bit by bit: whatever stands behind the last token, and as if nothing did."""
    found = []
    for sizes, fill in (([128, 128], 0), ([128, 256], 0), ([128, 256], 9)):
        session.reset()
        prefill.feed(tokens[:256], fill=fill, sizes=sizes)
        found.append([np.asarray(x) for x in session.state])
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, same)


def test_behind_a_block_of_which_some_rows_were_kept(session, prefill, tokens, decoded):
    """Decoding, then a chunk from the middle of a block, then decoding."""
    session.reset(dead=np.nan)
    session.step(tokens[:2])
    session.step([tokens[2], 7])
    session.keep(1)
    prefill.feed(tokens[3:129])
    session.step([tokens[129]], live=1)
    equal_states(session, decoded[2][129])
