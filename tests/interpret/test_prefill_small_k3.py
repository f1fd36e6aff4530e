"""The trained small K3: prompts in chunks against token-by-token decoding, on one rank and more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.decoding.schedule import Fixed
from kimi.reference.model import K3
from kimi.reference.moe import Router
from kimi.reference.numerics import F32, matmul
from kimi.reference.state import initial_state
from kimi.runtime.model import place_model
from kimi.text.chat import encode_chat
from kimi.tiny import ASSETS
from tests.interpret.devices import require_devices
from tests.interpret.prefill_model import Decoding
from tests.tolerances import (
    PREFILL_TAPS,
    PREFILL_TAPS_TYPICAL,
    PREFILL_TIE,
    PREFILL_TIED_TOKENS,
)

pytestmark = pytest.mark.slow  # minutes of compilation: see the README

STEPS = 64
COUNTS = (127, 128, 129, 130, 257)  # all but the last are read in chunks of 128
# Thought about and answered with certainty: the two best tokens are at least 1 apart in all steps,
# far beyond any rounding. Stories of the small K3 are full of ties.
PROBLEM = (
    "Tom has 3 apples and buys 4 more. Then he gives 2 to Mia. How many apples does he have now?"
)


@pytest.fixture(scope="module")
def text(tiny):
    """A function of a length: a prompt of so many tokens that ends with the problem."""
    messages = [{"role": "user", "content": PROBLEM}]
    asked = encode_chat(messages, tiny.tokenizer, thinking="max")
    found = [t for step in tiny.decoder(len(asked) + STEPS).generate(asked, STEPS) for t in step]

    def of_length(count: int) -> np.ndarray:
        before = ([*asked, *found] * 2)[: count - len(asked)]
        return np.asarray([*before, *asked], np.int32)

    return of_length


def choice_gaps(tiny, tokens):
    """By how much the scores of the last expert chosen and the first one not differ at every token:
    the least of all layers, by the reference."""
    gaps, call = [], Router.__call__

    def recording(router, x):
        scores = jax.nn.sigmoid(matmul(x.astype(F32), router.weight[...], F32))
        ordered = jnp.sort(scores + router.e_score_correction_bias[...], -1)
        gaps.append(np.asarray(ordered[:, -router.top_k] - ordered[:, -router.top_k - 1]))
        return call(router, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Router, "__call__", recording)
        K3.__call__(
            tiny.target, jnp.asarray(tokens), initial_state(tiny.config, len(tokens), jnp.float32)
        )
    return np.min([g[: len(tokens)] for g in gaps], 0)


def same_context(one, other, gaps):
    """Equal at every position, but for one in `PREFILL_TIED_TOKENS` where a near tie of two experts
    was decided otherwise: after that a token's taps are other ones."""
    errors = np.abs(one - other).max((0, 1, 2, 4, 5)) / np.abs(other).max()
    far = errors > PREFILL_TAPS
    assert np.median(errors) <= PREFILL_TAPS_TYPICAL
    assert far.sum() <= len(errors) // PREFILL_TIED_TOKENS, errors[far]
    near = gaps[len(gaps) - len(errors) :] <= PREFILL_TIE
    assert near[far].all(), (errors[far], gaps[len(gaps) - len(errors) :][far])


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_equal_to_decoding(tiny, text, ranks):
    """The same 64 greedy tokens, the same number of drafts accepted at every step, and the same
    context of the drafter, behind prompts that end around the borders of chunks."""
    require_devices(ranks)
    target, drafter = Checkpoint.open(tiny.path), DraftCheckpoint.open(ASSETS / "dspark")
    decoding = Decoding(place_model(target, drafter, ranks=ranks), 384)
    for count in COUNTS:
        tokens, found = text(count), []
        for feed in (decoding.programs.feed, decoding.decode):
            state = feed(decoding.programs.empty(), tokens)
            found.append(decoding.generate(state, STEPS, Fixed(8)))
        (new, accepted, state), (others, theirs, decoded) = found
        assert new == others, count
        assert accepted == theirs, count
        assert sum(accepted) > STEPS / 4, "drafts of the answer are accepted"
        length = int(state.lengths[0])
        gaps = choice_gaps(tiny, [*tokens, *new][:length])
        same_context(decoding.context(state), decoding.context(decoded), gaps)
