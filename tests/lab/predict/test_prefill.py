"""The chunk of a prompt at full size: it compiles for TPU v7, fits, and its predicted time."""

import pytest

from kimi.kernels.experts import ExpertFormat
from kimi.lab.predict.costs import JOINT, WRAPPED
from kimi.lab.predict.prompt_report import prompt_text
from kimi.lab.predict.prompt_steps import PROMPT_TOKENS, predict_prompt
from kimi.lab.predict.prompts import ChunkOptions
from kimi.lab.predict.shapes import CACHE_TOKENS

GOAL_MS = 1500  # of a prompt of `PROMPT_TOKENS`, if the long side of the slice is a ring
OPEN_MS = 2100  # if it is not: exchanges cross the middle of it over half as many links


@pytest.mark.slow
@pytest.mark.parametrize("experts", [form.value for form in ExpertFormat])
def test_a_chunk_fits_and_is_fast_enough(experts):
    """Minutes, most of them in the compiler: 2,048 tokens beside a cache of 131,072."""
    report = predict_prompt(ChunkOptions(tokens=2048, experts=experts, context=CACHE_TOKENS))
    print(prompt_text(report))
    assert report.fits, report.hbm_bytes
    assert report.prompt_tokens == PROMPT_TOKENS and len(report.prompt) == 4
    assert report.prompt_ms <= OPEN_MS and report.band[WRAPPED.name] <= GOAL_MS
    assert report.band[JOINT.name] == pytest.approx(report.prompt_ms)
    first, *_, last = report.prompt
    assert first.ms < last.ms < report.last.ms  # attention over a growing cache
    # Every part of a layer is there, and weights are read once.
    assert {"experts, kernel", "delta rule, kernel", "exchanges", "MLA, attention"} <= set(
        first.parts
    )
    assert first.weight_bytes < first.cost.hbm_bytes
    assert first.cost.unscheduled_us < 0.05 * first.cost.us
