"""The trained small K3: prompts in chunks against token-by-token decoding, on one rank and more."""

import numpy as np
import pytest

from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.decoding.schedule import Fixed
from kimi.runtime.model import place_model
from kimi.tiny import ASSETS
from tests.interpret.devices import require_devices
from tests.interpret.prefill_model import Decoding
from tests.tolerances import PREFILL_TAPS

pytestmark = pytest.mark.slow  # minutes of compilation: see the README

STEPS = 64
COUNTS = (51, 128, 129, 130, 257)


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_equal_to_decoding(tiny, prompt, greedy, ranks):
    """The same 64 greedy tokens, the same number of drafts accepted at every step, and the same
    context of the drafter, behind prompts that end around the borders of chunks."""
    require_devices(ranks)
    target, drafter = Checkpoint.open(tiny.path), DraftCheckpoint.open(ASSETS / "dspark")
    decoding = Decoding(place_model(target, drafter, ranks=ranks), 384)
    text = [*prompt, *greedy] * 4
    for count in COUNTS:
        tokens, found = np.asarray(text[:count], np.int32), []
        for feed in (decoding.programs.feed, decoding.decode):
            state = feed(decoding.programs.empty(), tokens)
            found.append(decoding.generate(state, STEPS, Fixed(8)))
        assert found[0][0] == found[1][0], count
        assert found[0][1] == found[1][1], count
        one, other = (decoding.context(state) for *_, state in found)
        assert np.abs(one - other).max() <= PREFILL_TAPS * np.abs(other).max()
