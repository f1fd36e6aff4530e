"""The checker: the published schedule is sound, and every way to break it is reported by name."""

from dataclasses import replace

import pytest

from kimi.kernels import schedule
from kimi.kernels.errors import PlanError
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.kernels.phases import PHASES
from kimi.kernels.plan import Plan, default_settings
from kimi.kernels.schedule import Kind, Message, Step, Transfer, problems
from tests.unit.kernels.build import published

LAYOUT = Layout(published(), Mesh(32, 2))
PLAN = Plan(LAYOUT, default_settings(LAYOUT, 8, 1024))


def broken(phase, change, nth=2):
    """The problems once `change` was applied to one occurrence of `phase`."""
    program = list(PLAN.program)
    index = [i for i, step in enumerate(program) if step.phase == phase][nth]
    program[index] = change(program[index])
    return problems(program, PLAN.transfers, PLAN.buffers, PHASES)


def without(counts, name):
    return tuple(item for item in counts if item[0] != name)


def test_the_whole_program_is_sound():
    assert problems(PLAN.program, PLAN.transfers, PLAN.buffers, PHASES) == []
    starts = sum(dict(step.starts).get("tiles", 0) for step in PLAN.program)
    waits = sum(dict(step.waits).get("tiles", 0) for step in PLAN.program)
    assert starts == waits == LAYOUT.first_tiles[-1]


@pytest.mark.parametrize(
    "phase, name",
    [("kda_delta", "kda_load"), ("attention_sum", "attention_scatter"), ("choose", "route_gather"),
     ("layer_join", "kda_store"), ("mla_query", "query_gather"), ("latent_up", "latent_gather")],
)  # fmt: skip
def test_a_removed_wait(phase, name):
    found = broken(phase, lambda s: replace(s, waits=without(s.waits, name)))
    assert any(f"starts {name} without a free slot" in line for line in found), found


def test_a_removed_wait_reads_what_is_not_there():
    found = broken("kda_decay", lambda s: replace(s, waits=without(s.waits, "decay_gather")))
    assert found[0] == ("kda_decay: reads decay_gather_receive while decay_gather still fills it")


def test_a_removed_start():
    found = broken("route", lambda s: replace(s, starts=without(s.starts, "route_gather")))
    assert found == ["choose: waits for route_gather, of which none was started"]


def test_a_double_start():
    found = broken("latent_sum", lambda s: replace(s, starts=s.starts * 2))
    assert found[0] == (
        "latent_sum: starts latent_gather without a free slot: 1 are under way or in use"
    )
    assert found[-1] == "end: semaphore of latent_gather: 1 never waited for"


def test_a_leaked_semaphore():
    """Only the last store of a state is not waited for: nothing races, but the core would halt."""
    last = [s.phase for s in PLAN.program].count("layer_join") - 1
    found = broken(
        "layer_join", lambda s: replace(s, waits=without(s.waits, "open_store")), nth=last
    )
    assert found == ["end: semaphore of open_store: 1 never waited for"]


def test_a_leaked_tile():
    found = broken("head", lambda s: replace(s, waits=(("tiles", 39),)), nth=0)
    assert found == ["end: semaphore of tiles: 1 never waited for"]


def test_a_write_into_a_buffer_that_is_being_sent():
    found = broken("kda_in", lambda s: replace(s, writes=(*s.writes, "decay_gather_send")))
    assert found == ["kda_in: writes into decay_gather_send, in use by decay_gather"]


def test_a_write_into_a_buffer_that_is_being_filled():
    found = broken("kda_in", lambda s: replace(s, writes=(*s.writes, "kda_record")))
    assert found == ["kda_in: writes into kda_record, in use by kda_load"]


def test_a_load_into_a_buffer_that_is_being_stored():
    more = Transfer("other", Kind.LOAD, target="kda_new_record")
    program = list(PLAN.program)
    index = next(i for i, s in enumerate(program) if s.phase == "kda_out")
    program[index] = replace(program[index], starts=(*program[index].starts, ("other", 1)))
    program[index + 3] = replace(program[index + 3], waits=(("other", 1),))
    found = problems(program, (*PLAN.transfers, more), PLAN.buffers, PHASES)
    assert "kda_out: other writes into kda_new_record, in use by kda_store" in found


def test_a_use_after_the_end_of_a_life():
    found = broken("latent_sum", lambda s: replace(s, reads=(*s.reads, "spread")))
    assert found == ["latent_sum: uses spread, which lives only from choose to experts"]


def test_a_buffer_that_nobody_knows():
    found = broken("route", lambda s: replace(s, reads=(*s.reads, "elsewhere")))
    assert found == ["route: uses elsewhere, which is not in the buffer table"]


def test_too_many_tiles_for_the_ring():
    found = broken("begin", lambda s: replace(s, starts=(("tiles", 10), *s.starts[1:])), nth=0)
    assert "begin: starts tiles without a free slot: 9 are under way or in use" in found


@pytest.mark.parametrize("between, sound", [(True, True), (False, False)])
def test_a_peer_must_not_overtake_a_reader(between, sound):
    """Twice the same collective: a fast peer's second message may arrive while we read the
    first."""

    def collective(n):
        return Transfer(n, Kind.ALL_GATHER, f"{n}_send", f"{n}_receive", message=Message(words=1))

    first = Step("route", starts=(("route_gather", 1),))
    read = Step("choose", (("route_gather", 1),), ("route_gather_receive",))
    other = [Step("latent_sum", starts=(("latent_gather", 1),)),
             Step("latent_up", (("latent_gather", 1),))]  # fmt: skip
    program = [first, read, *(other if between else ()), first, read]
    found = problems(program, (collective("route_gather"), collective("latent_gather")),
                     PLAN.buffers, PHASES)  # fmt: skip
    assert found == [] if sound else "peers may write into route_gather_receive" in found[0]


def test_errors_are_one_line():
    program = (replace(PLAN.program[0], starts=()), *PLAN.program[1:])
    with pytest.raises(PlanError, match=r"^schedule: embed: waits for embedding, of which none"):
        schedule.check(program, PLAN.transfers, PLAN.buffers, PHASES)


def test_messages():
    assert Message(bf16=224).rows(8) == 8  # 112 words
    assert Message(bf16=112, words=28).rows(1) == 1
    assert Message(words=129).rows(2) == 4
    assert Message(bf16=3).rows(1) == 1
