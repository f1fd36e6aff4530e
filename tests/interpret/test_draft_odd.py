"""Odd sizes on up to 32 ranks, and tokens that are equal."""

import dataclasses

import numpy as np
import pytest

from tests.interpret.draft_oracle import golden_drafter, golden_oracle
from tests.interpret.draft_session import DraftSession
from tests.unit.kernels.build import small_32
from tests.unit.kernels_draft.build import draft_config, random_drafter

pytestmark = pytest.mark.slow  # minutes of compilation: see the README

KEPT = (0, 3, *[8] * 33, 5)


@pytest.mark.parametrize("ranks", [1, 8, 32])
def test_odd_sizes(ranks):
    """A block of five. On 32 ranks: 4 columns of the stream, 64 ids, a quarter of a key head."""
    config = draft_config(
        200, vocab_size=2048, hidden_size=128, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=32, num_key_value_heads=8, head_dim=16, rank=40, taps=[0, 1, 3],
        block=5,
    )  # fmt: skip
    target = dataclasses.replace(small_32(), vocab_size=2048, hidden_size=128)
    tensors = random_drafter(config)
    session, oracle = DraftSession(config, target, tensors, ranks), golden_oracle(config, tensors)
    rng, equal = np.random.default_rng(0), 0
    for count in KEPT:
        taps = rng.standard_normal((count, config.tap_width), np.float32)
        anchor = (session.length * 7 + count) % config.vocab_size
        equal += oracle.check(anchor, taps, *session.step(anchor, taps))
    oracle.check_context(session)
    assert equal >= len(KEPT) - 5, equal


@pytest.mark.parametrize("ranks", [1, 2])
def test_of_equal_tokens_the_lower_id_is_chosen(ranks):
    """Every token has a twin in the upper half of the vocabulary, which another rank holds."""
    config, target, tensors = golden_drafter("dspark_sliding", sliding_window=200)
    half = config.vocab_size // 2
    for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
        tensors[name] = np.concatenate([tensors[name][:half]] * 2)
    session, oracle = DraftSession(config, target, tensors, ranks), golden_oracle(config, tensors)
    rng = np.random.default_rng(0)
    for count in range(9):
        taps = rng.standard_normal((count, config.tap_width), np.float32)
        tokens, confidence = session.step(half + count, taps)
        assert (tokens < half).all(), tokens
        oracle.check(half + count, taps, tokens, confidence)
