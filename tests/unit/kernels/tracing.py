"""What a kernel really does, phase by phase: read off the program that Pallas traces.

No phase is asked what it does. Its reads, writes, starts and waits are the equations that stand in
the scope of its name: `get` and `swap` of buffers, copies that start, waits for semaphores.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from kimi.kernels import megakernel
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft import kernel as draft_kernel
from kimi.kernels.draft.plan import DraftPlan
from kimi.kernels.plan import Plan
from kimi.kernels.refs import StepInput, scratch_shapes, state_shapes, weight_shapes

MANY = -1  # copies in a loop whose length is not known before it runs


@dataclasses.dataclass
class Traced:
    """What a phase does, in one place of the program.

    Attributes:
      phase: name.
      place: the branches and loops around it, outermost first.
      waits, starts: copies by name; `MANY` if their number depends on values.
      always: copies outside of branches.
      reads: buffers whose content is from before the phase.
      writes: buffers.
    """

    phase: str
    place: tuple[str, ...]
    waits: dict[str, int] = dataclasses.field(default_factory=dict)
    starts: dict[str, int] = dataclasses.field(default_factory=dict)
    always: set[str] = dataclasses.field(default_factory=set)
    reads: set[str] = dataclasses.field(default_factory=set)
    writes: set[str] = dataclasses.field(default_factory=set)


def unshared(plan: Any) -> Any:
    """The plan with a scratch array for every buffer, so that no array means two of them."""
    alone = dataclasses.replace(plan)
    alone.__dict__["buffers"] = tuple(dataclasses.replace(b, share="") for b in plan.buffers)
    alone.__dict__.pop("storages", None)
    return alone


def decode_arguments(plan: Plan) -> list[jax.ShapeDtypeStruct]:
    """Of the decode kernel."""
    shapes = weight_shapes(plan.layout) | state_shapes(plan)
    names = ("dense", "vectors", "experts", "embedding", "kda", "cache")
    return [jax.ShapeDtypeStruct((StepInput.SIZE,), jnp.int32),
            *(jax.ShapeDtypeStruct(*shapes[name]) for name in names)]  # fmt: skip


def trace_decode(plan: Plan) -> list[Traced]:
    """The decode kernel of a plan, phases in program order."""
    return _trace(plan, megakernel.build, decode_arguments(plan))


def trace_draft(plan: DraftPlan, arguments: Sequence[jax.ShapeDtypeStruct]) -> list[Traced]:
    """The draft kernel of a plan, phases in program order."""
    return _trace(plan, draft_kernel.build, arguments)


def _trace(plan: Any, build: Any, arguments: Sequence[jax.ShapeDtypeStruct]) -> list[Traced]:
    plan = unshared(plan)
    ranks = plan.layout.mesh.ranks
    traced = jax.make_jaxpr(build(plan), axis_env=[(AXIS, ranks)])(*arguments)
    body = next(e for e in _equations(traced.jaxpr) if e.primitive.name == "pallas_call")
    jaxpr = body.params["jaxpr"]
    scratch = jaxpr.invars[-len(scratch_shapes(plan)) :]
    buffers = [name for storage in plan.storages for name in storage.buffers]
    assert len(buffers) == len(plan.storages)
    semaphores: list[str] = []
    for transfer in plan.transfers:
        semaphores += [transfer.name] * (2 if transfer.kind.remote else 1)
    names = dict(zip(scratch, [*buffers, *semaphores], strict=True))
    tracer = _Tracer(set(buffers))
    tracer.walk(jaxpr, names, "", (), 1)
    return tracer.found


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in _inner(equation):
            yield from _equations(inner)


def _inner(equation: Any) -> list[Any]:
    values = equation.params.values()
    flat = [x for v in values for x in (v if isinstance(v, tuple | list) else (v,))]
    return [j for j in (getattr(x, "jaxpr", x) for x in flat) if hasattr(j, "eqns")]


class _Tracer:
    """Walks through a kernel's program."""

    def __init__(self, buffers: set[str]):
        self.buffers = buffers
        self.found: list[Traced] = []
        self.now = Traced("", ())
        self.fresh: set[str] = set()  # buffers that the phase has surely written so far
        self.branches = 0  # around, within the phase or outside
        self.seen: Counter[str] = Counter()  # loops and branches outside of phases

    def walk(
        self, jaxpr: Any, names: dict[Any, str], phase: str, place: tuple[str, ...], times: int
    ) -> None:
        """Notes what the equations do.

        Args:
          names: of the references among the variables.
          phase: the scope around.
          times: how often the equations run; `MANY` if that is not known.
        """
        used = {v for e in jaxpr.eqns for v in e.invars if not hasattr(v, "val")}
        for equation in jaxpr.eqns:
            scopes = [str(s) for s in str(equation.source_info.name_stack).split("/") if s]
            inner_phase = scopes[0] if scopes and not phase else phase
            if inner_phase and (inner_phase, place) != (self.now.phase, self.now.place):
                self.now, self.fresh = Traced(inner_phase, place), set()
                self.found.append(self.now)
            self.equation(equation, names, inner_phase, place, times, used)

    def equation(
        self, equation: Any, names: dict[Any, str], phase: str, place: tuple[str, ...],
        times: int, used: set[Any],
    ) -> None:  # fmt: skip
        kind = equation.primitive.name
        reference = _name(names, equation.invars[0]) if equation.invars else ""
        if kind in ("get", "swap", "addupdate") and reference in self.buffers:
            if kind != "swap" or equation.outvars[0] in used:
                self.read(reference)
            if kind != "get":
                self.write(reference)
        elif kind in ("dma_start", "dma_wait"):
            self.copy(equation, names, kind == "dma_start", times)
        else:
            self.seen[kind] += not phase
            here = (*place, f"{kind} {self.seen[kind]}") if not phase else place
            for inner, variables, factor in _calls(equation):
                own = {v: name for v, outer in variables if (name := _name(names, outer))}
                # The layers of a loop are told as one: only loops within a phase count copies.
                count = (MANY if MANY in (factor, times) else factor * times) if phase else 1
                fresh = set(self.fresh)
                self.branches += kind == "cond"
                self.walk(inner, own, phase, here, count)
                self.branches -= kind == "cond"
                if phase and kind in ("cond", "while"):
                    self.fresh = fresh  # it may not have run

    def read(self, name: str) -> None:
        if name not in self.fresh:
            self.now.reads.add(name)

    def write(self, name: str) -> None:
        self.now.writes.add(name)
        self.fresh.add(name)

    def copy(self, equation: Any, names: dict[Any, str], starts: bool, times: int) -> None:
        tree = jax.tree.unflatten(equation.params["tree"], equation.invars)
        source, target, semaphore, send = tree[:4]
        found = {_name(names, s) for s in (semaphore, send)} - {""}
        if not found:  # a copy within the phase, which nobody else waits for
            for name in {_name(names, source)} & self.buffers:
                self.read(name)
            for name in {_name(names, target)} & self.buffers:
                self.write(name)
            return
        (name,) = found  # both semaphores of a collective have its name
        counts = self.now.starts if starts else self.now.waits
        if not self.branches:
            self.now.always.add(name)
        if times == MANY or counts.get(name) == MANY:
            counts[name] = MANY
        else:
            counts[name] = counts.get(name, 0) + times


def _name(names: dict[Any, str], reference: Any) -> str:
    """The name of a reference, with or without indices; "" if it is something else."""
    variable = getattr(reference, "ref", reference)
    return "" if variable is None or hasattr(variable, "val") else names.get(variable, "")


def _calls(equation: Any) -> Iterator[tuple[Any, list[tuple[Any, Any]], int]]:
    """Programs inside an equation, their variables' outer names, and how often they run."""
    kind, params, arguments = equation.primitive.name, equation.params, equation.invars
    if kind == "cond":
        for branch in params["branches"]:
            yield branch.jaxpr, list(zip(branch.jaxpr.invars, arguments[1:], strict=True)), 1
    elif kind == "while":
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        body = params["body_jaxpr"].jaxpr
        outer = [*arguments[first:second], *arguments[second:]]
        yield body, list(zip(body.invars, outer, strict=True)), MANY
    elif kind == "scan":
        body = params["jaxpr"].jaxpr
        yield body, list(zip(body.invars, arguments, strict=True)), params["length"]
    else:
        for inner in _inner(equation):
            # References from around a scope of memory are its constants.
            yield inner, list(zip(inner.constvars or inner.invars, arguments, strict=False)), 1
