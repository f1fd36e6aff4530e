"""512 greedy tokens of the small K3, by every way of decoding on devices: those of the reference.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 pytest -m slow tests/interpret/test_length.py

Behind a text that the model itself repeats, more and more surely: free text has places where two
tokens are nearly equal, and there bfloat16 operands may choose the other. Word problems are
compared by `eval/paths.py`.
"""

import numpy as np
import pytest

import kimi
from kimi.decoding.schedule import Adaptive, CostTable, Fixed
from kimi.decoding.stats import Stats
from tests.interpret.devices import require_devices
from tests.tolerances import ACCEPTANCE, KERNEL_LOGITS

TEXT, COUNT, ROWS = "one two three four five six seven " * 12, 512, 8
PROMPT = 160  # tokens
SCHEDULES = {
    "off": None,
    "fixed": Fixed(ROWS),
    "adaptive": Adaptive(CostTable(0.2, {1: 1.0, 2: 1.6, 4: 2.0, 8: 3.5})),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reference():
    return kimi.load(backend="reference")


@pytest.fixture(scope="module")
def prompt(reference):
    ids = reference.encode(TEXT, chat=False)
    for _ in range(2):
        ids = decode(reference, ids[-PROMPT:], Fixed(ROWS))[0]
    return ids[-PROMPT:]


@pytest.fixture(scope="module", params=[1, 8])
def engine(request):
    require_devices(request.param)
    return kimi.load(backend="kernel", ranks=request.param)


def decode(engine, prompt, schedule):
    stats = Stats()
    decoder = engine.decoder(len(prompt) + COUNT)
    steps = decoder.generate(prompt, COUNT, schedule=schedule, stats=stats)
    return [t for ids in steps for t in ids], stats


@pytest.fixture(scope="module")
def truth(reference, prompt):
    """Plain decoding; nowhere are the two best tokens near."""
    ids, _ = decode(reference, prompt, None)
    assert len(set(ids)) > 9
    logits = reference.logits([*prompt, *ids])[len(prompt) - 1 : -1]
    second, first = np.sort(logits, -1)[:, -2:].T
    assert (first - second).min() > KERNEL_LOGITS * np.abs(logits).max()
    return ids


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_tokens_and_acceptance(engine, reference, prompt, truth, schedule):
    ids, stats = decode(engine, prompt, schedule)
    assert ids == truth and stats.finish == "length"
    if schedule is not None:
        ids, expected = decode(reference, prompt, schedule)
        assert ids == truth
        ratio = stats.acceptance_length / expected.acceptance_length
        assert abs(ratio - 1) <= ACCEPTANCE, ratio
