"""The decode kernel at the published size: compiled for TPU v7, simulated, beside the skeleton."""

import pytest

from kimi.lab.predict.calibration import read_traces
from kimi.lab.predict.costs import JOINT
from kimi.lab.predict.loops import LoopOptions, loop_memory
from kimi.lab.predict.steps import predict
from kimi.lab.predict.subjects import StepOptions
from tests.unit.kernels.traffic import expert_load, step_bytes

STEPS = {
    "one row": StepOptions(),
    "a block of eight": StepOptions(rows=8, block=True),
    "eight sequences": StepOptions(rows=8),
    "a long context": StepOptions(context=131_000),
    "FP8 experts": StepOptions(experts="fp8"),
}


@pytest.mark.slow
@pytest.mark.parametrize("options", STEPS.values(), ids=STEPS)
def test_a_step_compiles_fits_and_moves_the_bytes_of_the_budget(options):
    step = predict(options)
    report, [first, *_] = step.report, step.report.predictions
    assert report.problems == [] and first.unknown == {}
    assert [name.split(".")[0] for name in report.compilation.hlo_kernels] == [
        "decode",
        "cache_append",
    ]
    layout, rows = step.plan.layout, options.rows
    load = expert_load(layout.config, layout.mesh, rows)
    expected = step_bytes(layout, rows, options.context, load)
    assert report.traffic["dense"] == expected.dense
    # Drawn with another seed; and each layer's list is a whole number of experts.
    assert report.traffic["experts"] == pytest.approx(expected.experts, rel=0.01)
    every = sum(
        len(step.plan.rounds(layout.kind(i))) for i in range(layout.config.num_hidden_layers)
    )
    # Exchanges that overlap are waited for as one round; embedding and token are two more.
    assert first.exchange_rounds <= every + 2
    phases = {name: parts.total for name, parts in first.scopes.items()}
    assert sum(phases.values()) == pytest.approx(first.cycles)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 8])
def test_the_order_of_the_peer_is_compared_model_by_model(rows):
    compared = predict(StepOptions(rows=rows, block=rows > 1), compare=True).comparison
    assert compared.peer[0].problems == [] and compared.peer[0].unknown == {}
    assert compared.ratios[0] == pytest.approx(compared.step[0].us / compared.peer[0].us)
    # The skeleton is the one that the calibration holds to the peer's measurement.
    kept = read_traces()[f"K3, {rows} row{'s' * (rows > 1)} x{rows}"]
    assert kept.us(JOINT) == pytest.approx(compared.peer[0].us, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("singles", [False, True])
def test_the_cache_stays_where_it_is(singles):
    """A program of drafted steps at 131,072 tokens: what it copies is small, the cache is not."""
    found = loop_memory(LoopOptions(singles=singles))
    states = {name: found.arguments[name] for name in ("KDA states", "drafter's context", "taps")}
    copied = sum(states.values())
    assert found.donated >= copied + found.cache + found.arguments["state"]
    assert found.temporaries < 2 * copied < found.cache / 50
