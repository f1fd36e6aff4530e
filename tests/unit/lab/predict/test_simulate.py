import json
from dataclasses import replace

import pytest

from kimi.errors import ConfigError, InputError
from kimi.lab.predict.costs import ALLOWED, JOINT, CostModel
from kimi.lab.predict.dump import parse_allocations, parse_bundles
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.simulate import partition_words, simulate
from kimi.lab.predict.trace import Trace, trace_of
from tests.unit.lab.predict.snippets import (
    ALLOCATIONS,
    CAST,
    EXCHANGE,
    FILLS,
    HEADER,
    LOOP,
    SCALARS,
)


@pytest.mark.parametrize("trips", [1, 2, 7])
def test_loop_runs_as_often_as_the_operand_says(trips):
    [found] = simulate(parse_bundles(LOOP), inputs=KernelInputs({0: (0, trips)}))
    assert found.problems == [] and found.unknown == {}
    assert found.loops == ({6: trips - 1} if trips > 1 else {})
    assert found.hbm_bytes == 32 * (16 + trips * 128)
    assert set(found.scopes) == {"tile", "-"}


def test_loop_waits_for_every_tile():
    """A serial copy costs its latency, its bytes, and nothing overlaps."""
    one, seven = (
        simulate(parse_bundles(LOOP), inputs=KernelInputs({0: (0, n)}))[0] for n in (1, 7)
    )
    copy = JOINT.cycles(JOINT.hbm_latency_us) + 4096 / JOINT.hbm_bytes_cycle
    assert seven.parts.wait - one.parts.wait == pytest.approx(6 * (copy - 1))
    # Seven bundles, one branch bundle, one empty one that stands for six.
    assert seven.cycles - one.cycles - (seven.parts.wait - one.parts.wait) == 6 * (6 + 1 + 6)


def test_scalar_values():
    inputs = KernelInputs(popped={"-": [41, 42]})
    [found] = simulate(parse_bundles(SCALARS), inputs=inputs)
    words = [found.smem["allocation1", n] for n in range(6)]
    assert words == [3, 2, 99, 17, 41, 7]
    assert ("allocation1", 6) in found.smem
    assert found.unimplemented == {"sfrobnicate": 1}


def test_a_cast_writes_no_register():
    [found] = simulate(parse_bundles(CAST))
    assert found.smem["allocation1", 0] == 8


def test_unknown_scalars_are_counted():
    [found] = simulate(parse_bundles(SCALARS))
    assert found.smem["allocation1", 4] == 0
    assert found.unknown == {"vector to scalar in scope -": 1}


def test_division_takes_its_latency():
    program = parse_bundles(HEADER + SCALARS.split("\n   0x3")[0].removeprefix(HEADER))
    [found] = simulate(program)
    assert (found.parts.bundles, found.parts.interlock) == (3, 8)


def test_copies_from_vector_code_bring_their_words_in_turn():
    inputs = KernelInputs(fills={"allocation5": [(7,), (8,)]})
    [found] = simulate(parse_bundles(FILLS), inputs=inputs)
    assert [found.smem["allocation1", n] for n in range(4)] == [7, 7, 8, 7]
    assert found.unknown == {}


def test_waits_are_for_peers_for_memory_or_for_the_core_itself():
    [exchange] = simulate(parse_bundles(EXCHANGE))
    assert exchange.parts.exchange == exchange.parts.wait > 0
    [loop] = simulate(parse_bundles(LOOP), inputs=KernelInputs({0: (0, 2)}))
    assert loop.parts.hbm == loop.parts.wait > 0
    assert loop.hbm_arrays == {"input 1": 2 * 4096, "input 0": 512}
    [fills] = simulate(parse_bundles(FILLS))
    assert fills.parts.local == fills.parts.wait > 0
    assert fills.parts.total == pytest.approx(fills.cycles)


def test_exchange_time_rounds_and_faults():
    costs = CostModel("test", latency_us=2.0, link_bytes_s=1.9e11, compute_scale=1.0)
    [found] = simulate(parse_bundles(EXCHANGE), (costs,))
    assert (found.exchange_rounds, found.ici_bytes) == (1, 2048)
    assert (found.messages, found.link_bytes) == (1, 2 * 2048)
    # Of both cores 2048 bytes at 100 bytes a cycle, then the latency; issue at cycle 2, wait at 3.
    assert found.parts.wait == pytest.approx(2 * 20.48 + 3800 - 1)
    assert found.undrained == {"allocation3": 1, "allocation8": 1}
    assert list(found.unsatisfied) == ["allocation3 at 0x8"]
    assert len(found.problems) == 3


def test_models_share_one_execution():
    slow = replace(JOINT, latency_us=JOINT.latency_us + 9, floor_us=())
    found = simulate(parse_bundles(EXCHANGE), (replace(JOINT, floor_us=()), slow))
    assert len({p.parts.bundles for p in found}) == 1
    assert found[1].us - found[0].us == pytest.approx(9.0)


def test_run_can_be_cut_short():
    [found] = simulate(parse_bundles(LOOP), inputs=KernelInputs({0: (0, 10**6)}), max_bundles=50)
    assert found.parts.bundles == 50 and found.notes == {"stopped after 50 bundles": 1}


def test_partition_is_found_by_its_purpose():
    assert partition_words(parse_allocations(ALLOCATIONS), 5) == {"allocation0": 5}


def test_no_model_is_an_error():
    with pytest.raises(InputError, match="cost model"):
        simulate(parse_bundles(LOOP), ())


@pytest.mark.parametrize("field,value", [("clock_ghz", 0.0), ("hbm_efficiency", 1.2)])
def test_impossible_costs_are_named(field, value):
    with pytest.raises(ConfigError, match=field):
        CostModel("bad", **{field: value})


def test_a_copy_names_the_core_that_gets_it():
    """Chip in the low bits of an operand, core above; told as a distance from the sender."""
    for word, peer, fullest in ((0xC004003, 7, 2), (0x8004008, 16, 4)):
        operands = f"[#allocation6], /*overrides=*/{word}, /*dst_syncflagno_1=*/0 }}"
        text = EXCHANGE.replace("[#allocation6] }", operands)
        assert text != EXCHANGE
        for rank in (0, 1):
            [found] = simulate(parse_bundles(text), inputs=KernelInputs(rank=rank))
            assert [copy.peer for copy in found.copies] == [peer ^ rank]
            assert found.link_bytes == fullest * 2048


@pytest.mark.parametrize("text", [EXCHANGE, LOOP, FILLS])
def test_a_trace_is_timed_as_its_run(text):
    program, inputs = parse_bundles(text), KernelInputs({0: (0, 5)})
    trace = trace_of(program, inputs)
    kept = Trace.of(json.loads(json.dumps(trace.fields())))
    for found in simulate(program, ALLOWED, inputs):
        assert trace.us(found.costs) == kept.us(found.costs) == pytest.approx(found.us)
