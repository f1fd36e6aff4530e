"""The schedule that is checked is what runs: every phase, traced, does what its step says."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from kimi.kernels import collectives, megakernel, phases
from kimi.kernels.draft import kernel as draft_kernel
from kimi.kernels.draft import phases as phases_of_draft
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.draft.plan import default_settings as draft_settings
from kimi.kernels.draft.running import DraftStep
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh, default_mesh
from kimi.kernels.plan import Plan, default_settings
from kimi.kernels.schedule import Step, Transfer
from tests.unit.kernels.build import published
from tests.unit.kernels.tracing import MANY, Traced, trace_decode, trace_draft

RANKS = 8
FORMS = {
    "one row": dict(rows=1),
    "block": dict(rows=8),
    "batch": dict(rows=8, sequences=8),
    "one row with rollback": dict(rows=1, rollback=True),
}


def plan_of(config, experts=ExpertFormat.MXFP4, ranks=RANKS, **form) -> Plan:
    layout = Layout(config, default_mesh(config, ranks), experts)
    taps = (0, 2, config.num_hidden_layers)
    return Plan(layout, default_settings(layout, context=512, taps=taps, **form))


def counts(traced: dict[str, int], transfers: dict[str, Transfer], messages: int) -> dict[str, int]:
    """Copies as the table counts them: a collective is one, whatever its messages are."""
    return {
        name: n // (messages if transfers[name].kind.remote else transfers[name].copies)
        if n != MANY
        else MANY
        for name, n in traced.items()
    }


def differences(step: Step, traced: Traced, plan, elsewhere: Step | None = None) -> list[str]:
    """What a phase does and its step does not say, and the other way round.

    Args:
      elsewhere: what the phase does in other layers; here branches may hold it, never taken.
    """
    others = {name for name, _ in (*elsewhere.waits, *elsewhere.starts)} if elsewhere else set()
    transfers = {t.name: t for t in plan.transfers}
    peers = len(plan.layout.mesh.offsets)
    found = []
    for what, said, done in (
        ("waits", dict(step.waits), counts(traced.waits, transfers, 2)),
        ("starts", dict(step.starts), counts(traced.starts, transfers, peers)),
    ):
        found += [
            f"{step.phase}: {what} {name}: {said.get(name, 0)} in the table, "
            f"{done.get(name, 0)} in the kernel"
            for name in said.keys() | done.keys()
            if said.get(name, 0) != done.get(name, 0)
            and not (name in said and done.get(name) == MANY)
            and not (name not in said and name in others - traced.always)
        ]
    for what, said, done in (
        ("reads", set(step.reads), traced.reads), ("writes", set(step.writes), traced.writes),
    ):  # fmt: skip
        found += [f"{step.phase}: {what} {name}: only in the table" for name in said - done]
        found += [f"{step.phase}: {what} {name}: only in the kernel" for name in done - said]
    return found


def joined(steps: list[Step]) -> Step:
    """What one piece of code does for several layers: for each, one of these steps."""

    def most(sides):
        return tuple({name: max(dict(s).get(name, 0) for s in sides)
                      for side in sides for name, _ in side}.items())  # fmt: skip

    return Step(
        steps[0].phase, most([s.waits for s in steps]),
        tuple({n for s in steps for n in s.reads}), tuple({n for s in steps for n in s.writes}),
        most([s.starts for s in steps]),
    )  # fmt: skip


def together(steps: list[Step]) -> Step:
    """Steps of one phase, one after the other, that one loop of the kernel runs."""

    def sums(sides):
        names = dict.fromkeys(name for side in sides for name, _ in side)
        return tuple((name, sum(dict(s).get(name, 0) for s in sides)) for name in names)

    reads, written = set(), set()
    for step in steps:
        reads |= set(step.reads) - written
        written |= set(step.writes)
    return dataclasses.replace(
        joined(steps), waits=sums([s.waits for s in steps]), starts=sums([s.starts for s in steps]),
        reads=tuple(reads),
    )  # fmt: skip


def decode_differences(plan: Plan) -> list[str]:
    """Of the whole decode kernel."""
    traced = [t for t in trace_decode(plan) if t.phase != "barrier"]
    layout, dense = plan.layout, plan.layout.config.first_k_dense_replace
    before, behind = phases.frame_steps(layout, plan.settings)
    found, rest = [], iter(traced)

    every = [s for kind in layout.layer_of_kind for s in plan.layer_steps(kind)]

    def compare(steps: list[list[Step]]) -> None:
        """Each phase must be one of its steps."""
        for either in steps:
            phase, name = next(rest), either[0].phase
            assert phase.phase == name, "another order than the table's"
            elsewhere = [s for s in every if s.phase == name]
            others = joined(elsewhere) if elsewhere else None
            tried = (differences(step, phase, plan, others) for step in either)
            found.extend(min(tried, key=len))

    compare([[step] for step in plan.program[: len(before)]])
    count = layout.config.num_hidden_layers
    for layers in (range(dense), range(dense, count)):
        kinds = dict.fromkeys(layout.kind(i) for i in layers)
        of_kind = {kind: {s.phase: s for s in plan.layer_steps(kind)} for kind in kinds}
        order = dict.fromkeys((
            *phases.MIX, *(p for kind in kinds for p in phases.attention(kind)), *phases.JOIN,
            *(p for kind in kinds for p in phases.feed_forward(kind)), *phases.END,
        ))  # fmt: skip
        compare([[joined([s[p] for s in of_kind.values() if p in s])] for p in order])
    # At the end of the stream nothing is requested; a branch decides it where the head is a loop.
    limited = plan.program[-len(behind) :]
    compare([list(either) for either in zip(limited, behind, strict=True)])
    assert next(rest, None) is None
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_phase_does_what_the_table_says(tiny, form):
    assert decode_differences(plan_of(tiny.config, **FORMS[form])) == []


def test_with_fp8_experts(tiny):
    assert decode_differences(plan_of(tiny.config, ExpertFormat.FP8, rows=8)) == []


def test_the_published_model():
    assert decode_differences(plan_of(published(), ranks=32, rows=1)) == []


def draft_plan(tiny) -> DraftPlan:
    layout = DraftLayout(tiny.runner.drafter.config, tiny.config, Mesh(RANKS))
    return DraftPlan(layout, draft_settings(layout))


def draft_arguments(plan: DraftPlan) -> list[jax.ShapeDtypeStruct]:
    """Of the draft kernel, see its package."""
    layout, taps = plan.layout, len(plan.layout.config.aux_hidden_state_layer_ids)
    shape = jax.ShapeDtypeStruct
    return [
        shape((DraftStep.SIZE,), jnp.int32),
        shape((taps, 8, layout.config.hidden_size), jnp.float32),
        *(shape(s, jnp.float32 if n == "vectors" else jnp.uint32)
          for n, s in layout.shapes.items()),
        shape(plan.cache.shape, jnp.uint32),
    ]  # fmt: skip


def draft_differences(plan: DraftPlan) -> list[str]:
    """Of the whole draft kernel."""
    traced = [t for t in trace_draft(plan, draft_arguments(plan)) if t.phase != "barrier"]
    layers = len(phases_of_draft.LAYER)
    program = list(plan.program)
    head = len(phases_of_draft.PROLOGUE)
    steps = [*program[:head], *phases_of_draft.layer_steps(plan.layout)]
    tail = program[head + layers * plan.layout.config.num_hidden_layers :]
    for phase in phases_of_draft.EPILOGUE:
        steps.append(together([s for s in tail if s.phase == phase]))
    assert [s.phase for s in steps] == [t.phase for t in traced], "another order than the table's"
    return [d for s, t in zip(steps, traced, strict=True) for d in differences(s, t, plan)]


def test_every_phase_of_the_draft_does_what_the_table_says(tiny):
    assert draft_differences(draft_plan(tiny)) == []


def no_wait(k, name):
    """A wait that is forgotten."""


def forgets_its_wait(k, layer, run=megakernel.CODE["kda_decay"]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kimi.kernels.collectives.wait", no_wait)
        run(k, layer)


def reads_what_it_does_not_own(k, layer, run=megakernel.CODE["mlp_res"]):
    run(k, layer)
    ws = k.ws
    ws["normed"][:1, :128] = ws["residuals"][0, :1, :128].astype(ws["normed"].dtype)


def sends_twice(k, layer, run=megakernel.CODE["route"]):
    run(k, layer)
    own = k.mesh.local(k.config.hidden_size)
    collectives.all_gather(k, "embed_gather", k.ws["stream"][:, :own])


@pytest.mark.parametrize(
    "phase, code, expected",
    [
        ("kda_decay", forgets_its_wait,
         "kda_decay: waits decay_gather: 1 in the table, 0 in the kernel"),
        ("mlp_res", reads_what_it_does_not_own, "mlp_res: reads residuals: only in the kernel"),
        ("route", sends_twice, "route: starts embed_gather: 0 in the table, 1 in the kernel"),
    ],
)  # fmt: skip
def test_a_planted_difference_is_found(tiny, monkeypatch, phase, code, expected):
    monkeypatch.setitem(megakernel.CODE, phase, code)
    found = decode_differences(plan_of(tiny.config, rows=1, ranks=2))
    assert expected in found and all(line.startswith(phase) for line in found), found


def test_another_order_is_found(tiny, monkeypatch):
    """The kernel runs the table's order; one that did not would be caught."""
    run = megakernel.run_phases
    monkeypatch.setattr(
        megakernel, "run_phases", lambda code, names, *at: run(code, sorted(names), *at)
    )
    with pytest.raises(AssertionError, match="another order than the table's"):
        decode_differences(plan_of(tiny.config, rows=1, ranks=2))


def test_a_planted_difference_of_the_draft_is_found(tiny, monkeypatch):
    code = draft_kernel.LAYER["mlp_in"]

    def reads_more(k, layer):
        code(k, layer)
        k.ws["gate_up"][:8, :128] = k.ws["stream"][:, :128]

    monkeypatch.setitem(draft_kernel.LAYER, "mlp_in", reads_more)
    found = draft_differences(draft_plan(tiny))
    assert found == ["mlp_in: reads stream: only in the kernel"]


def test_every_phase_has_code():
    assert set(megakernel.CODE) == set(phases.PHASES)
    assert {**draft_kernel.FRAME, **draft_kernel.LAYER}.keys() == set(phases_of_draft.PHASES)
