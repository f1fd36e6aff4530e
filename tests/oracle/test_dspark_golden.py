"""The reference drafter against speculators' DSpark: one block at a non-zero position, float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.checkpoint import DraftCheckpoint
from kimi.config import DraftConfig
from kimi.lab.train.weights import load_drafter
from kimi.reference.state import initial_draft_cache
from tests.conftest import DATA
from tests.tolerances import CONFIDENCE_GOLDEN, DRAFT_GOLDEN


@pytest.fixture(scope="module", params=["dspark_full", "dspark_sliding"])
def case(request):
    folder = DATA / request.param
    config = DraftConfig.from_dir(folder)
    drafter = load_drafter(DraftCheckpoint.open(folder), config)
    return config, drafter, np.load(folder / "io.npz")


def draft(drafter, taps, anchor_token, pieces):
    """Extends the context piece by piece, then drafts."""
    state = initial_draft_cache(drafter.config, 64, jnp.float32)
    extend, start = jax.jit(drafter.extend), 0
    for count in pieces:
        state = extend(jnp.asarray(taps[start : start + count]), state)
        start += count
    return jax.jit(drafter.draft)(jnp.int32(anchor_token), state)


# One go, in small steps, and in uneven pieces around the window of 16.
@pytest.mark.parametrize("pieces", [(37,), (1,) * 37, (15, 1, 1, 17, 3)], ids=str)
def test_block(case, pieces):
    config, drafter, io = case
    anchor = int(io["anchor"])
    assert anchor == sum(pieces)
    block = draft(drafter, io["aux"], io["ids"][anchor], pieces)
    np.testing.assert_array_equal(block.tokens, io["tokens"])
    np.testing.assert_allclose(block.hidden, io["hidden"], rtol=0, atol=DRAFT_GOLDEN)
    np.testing.assert_allclose(block.base_logits, io["base_logits"], rtol=0, atol=DRAFT_GOLDEN)
    np.testing.assert_allclose(block.logits, io["logits"], rtol=0, atol=DRAFT_GOLDEN)
    np.testing.assert_allclose(block.confidence, io["confidence"], rtol=0, atol=CONFIDENCE_GOLDEN)


def test_positions_matter(case):
    """With the rotary embedding off by one position the golden does not hold."""
    config, drafter, io = case
    anchor = int(io["anchor"])
    block = draft(drafter, io["aux"][:-1], io["ids"][anchor], (anchor - 1,))
    assert abs(np.asarray(block.base_logits) - io["base_logits"]).max() > 100 * DRAFT_GOLDEN
