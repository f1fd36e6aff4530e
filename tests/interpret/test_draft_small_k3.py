"""The trained drafter on the kernel, on text of the small K3, on one rank and several."""

import jax.numpy as jnp
import numpy as np
import pytest

from kimi.assets import TINY_K3
from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.reference.model import K3
from kimi.reference.state import initial_state
from kimi.text.chat import encode_chat
from tests.interpret.draft_oracle import Oracle
from tests.interpret.draft_session import DraftSession
from tests.programs import compiled

pytestmark = pytest.mark.slow  # minutes of compilation: see the README

PROMPT = "Tom has 3 apples and buys 4 more. How many apples does he have now?"
STEPS = 48


@pytest.fixture(scope="module")
def text(tiny) -> list[int]:
    """A word problem, and how the small K3 goes on."""
    prompt = encode_chat([{"role": "user", "content": PROMPT}], tiny.tokenizer, thinking="off")
    steps = tiny.decoder(len(prompt) + STEPS).generate(prompt, STEPS)
    return [*prompt, *(token for step in steps for token in step)]


@pytest.fixture(scope="module")
def taps(tiny, text) -> np.ndarray:
    """The reference model's, [T, taps * D]."""
    out = compiled(K3.__call__, tiny.runner.target)(
        jnp.asarray(text), initial_state(tiny.config, len(text), jnp.float32)
    )
    return np.asarray(out.taps(tiny.runner.drafter.config.aux_hidden_state_layer_ids))


def run(tiny, text, taps, ranks):
    """Steps along the text, 0 to 8 rows each. Returns tokens, and how many blocks are equal."""
    store = DraftCheckpoint.open(TINY_K3 / "dspark")
    session = DraftSession(
        store.config, tiny.config, store, ranks, shared=Checkpoint.open(tiny.path)
    )
    oracle, done, found, equal = Oracle(tiny.runner.drafter), 0, [], 0
    for count in [*range(9), *range(8, -1, -1), 4]:
        new = taps[done : done + count]
        done += count
        tokens, confidence = session.step(text[done], new)
        equal += oracle.check(text[done], new, tokens, confidence)
        found.append(tokens)
    oracle.check_context(session)
    return np.stack(found), equal


def test_the_trained_drafter(tiny, text, taps):
    """Nearly equal tokens may be confused, in a few blocks at most; see `Oracle.check`."""
    found, equal = run(tiny, text, taps, 1)
    assert equal >= len(found) - 3, equal


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_several_ranks(tiny, text, taps, ranks):
    """All ranks give the same, bit by bit (see `DraftSession.step`). With 8, two share a head of
    keys and values."""
    found, equal = run(tiny, text, taps, ranks)
    assert equal >= len(found) - 3, equal
