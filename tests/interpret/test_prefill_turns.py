"""Prompts through target and drafter, and conversations over several turns; a small random model.

The trained small K3, on several ranks: `test_prefill_small_k3`.
"""

import numpy as np
import pytest

from kimi.decoding.schedule import Fixed
from kimi.decoding.snapshots import Conversation
from kimi.errors import InputError
from kimi.runtime.backend import snapshot_bytes
from tests.interpret.prefill_model import Decoding, small_model
from tests.tolerances import PREFILL_TAPS

SCHEDULE = Fixed(4)


@pytest.fixture(scope="module")
def decoding():
    return Decoding(small_model(), 384)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(1).integers(0, 2048, 300).tolist()


@pytest.mark.slow  # one more loop over both kernels to compile
@pytest.mark.parametrize("count", [2, 128, 130])
def test_the_drafters_context_and_what_follows(decoding, tokens, count):
    """On both paths; the step behind commits nothing twice."""
    found = []
    for read in (decoding.prefill, decoding.decode):
        state = read(tokens[:count])
        found.append(decoding.generate(state, 8, SCHEDULE))
    assert found[0][:2] == found[1][:2]
    one, other = (decoding.context(state) for *_, state in found)
    assert np.abs(one - other).max() <= PREFILL_TAPS * np.abs(other).max()


def test_a_prompt_of_one_token(decoding, tokens):
    state = decoding.prefill(tokens[:1])
    assert int(state.lengths[0]) == 0 and int(state.tokens[0]) == tokens[0]


def cold(decoding, prompt, count):
    return decoding.generate(decoding.prefill(prompt), count, SCHEDULE)[0]


def test_turns_continue_at_snapshots_only(decoding, tokens):
    """Cached equals cold: a next turn, another branch from the first turn's end, a new start."""
    conversation = Conversation(decoding.programs)

    def turn(prompt, covered):
        state, cached = conversation.resume(prompt)
        assert cached == covered
        new, _, state = decoding.generate(state, 6, SCHEDULE)
        conversation.save(state, [*prompt, *new])
        assert new == cold(decoding, prompt, 6)
        return [*prompt, *new]

    first = turn(tokens[:140], 0)
    second = turn([*first, *tokens[140:150]], len(first) - 1)
    turn([*second, *tokens[150:153]], len(second) - 1)
    turn([*first, *tokens[200:210]], len(first) - 1)  # overwrites what the second turn had cached
    turn([*second, *tokens[153:155]], len(first) - 1)
    turn([*first[:-20], *tokens[:3]], 0)  # in the middle of a turn: read anew


def test_the_oldest_snapshot_goes_first(decoding, tokens):
    conversation, text = Conversation(decoding.programs, limit=1), tokens[:5]
    for _ in range(2):
        state, _ = conversation.resume(text)
        new, _, state = decoding.generate(state, 2, SCHEDULE)
        conversation.save(state, [*text, *new])
        before, text = text, [*text, *new, 3]
    assert conversation.resume([*before, 1, 2, 3])[1] == 0


def test_what_cannot_be_is_said(decoding, tokens):
    conversation = Conversation(decoding.programs)
    with pytest.raises(InputError, match="prompt: expected at least one token, found none"):
        conversation.resume([])
    with pytest.raises(InputError, match="snapshots: expected a limit of at least 1, found 0"):
        Conversation(decoding.programs, 0)
    state, _ = conversation.resume(tokens[:5])
    with pytest.raises(
        InputError, match="expected a state behind 2 tokens and the newest, found one behind 4"
    ):
        conversation.save(state, tokens[:3])


def test_bytes_of_a_snapshot(decoding):
    """What is copied, and nothing else."""
    backend = decoding.backend
    caches, _ = backend.empty().caches.detach()
    held = sum(x.nbytes for x in (caches.kda, caches.draft, caches.taps))
    assert snapshot_bytes(backend.plan, backend.draft_plan) == held and caches.cache.size == 1
