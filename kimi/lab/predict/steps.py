"""Compiles the decode step, feeds its schedule to the simulator, and compares it with the peer's.

predicted = predict(StepOptions(rows=8, block=True), compare=True)
print(report_text(predicted.report))
timeline = layer_timeline(predicted, mla=False)
"""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from kimi.errors import InputError, KimiError
from kimi.kernels.layout import LayerKind
from kimi.kernels.plan import Plan
from kimi.kernels.refs import state_shapes
from kimi.lab.predict.costs import ALLOWED, CostModel
from kimi.lab.predict.feed import commit_inputs, kernel_inputs
from kimi.lab.predict.launch import Built, Kernel, Target, compile_targets
from kimi.lab.predict.links import slice_of
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.module import Module, module_file, parse_module
from kimi.lab.predict.module_time import copy_us
from kimi.lab.predict.report import Comparison, StepReport, step_report
from kimi.lab.predict.simulate import simulate
from kimi.lab.predict.skeleton import skeleton_inputs
from kimi.lab.predict.subjects import StepOptions, display_names, traffic_by_family
from kimi.lab.predict.timeline import Timeline, Window, record

_WARM_LAYERS = 8  # from here on a layer's ring and expert slots are as in all later ones
_PEER_ROWS = (1, 8)  # of the steps that the peer's order of work is known for
_DECODE, _SKELETON = "kimi.lab.predict.subjects:decode", "kimi.lab.predict.skeleton:skeleton"


@dataclass(frozen=True)
class PredictedStep:
    """A compiled step with what was predicted for it.

    Attributes:
      plan: of the kernel.
      kernel, inputs: the schedule and what it was fed.
      names: of its buffers, see `subjects.display_names`.
      report: the figures.
      comparison: with the peer-like skeleton, if asked for.
    """

    plan: Plan
    kernel: Kernel
    inputs: KernelInputs
    names: dict[str, str]
    report: StepReport
    comparison: Comparison | None = None


def predict(
    options: StepOptions, compare: bool = False, models: Sequence[CostModel] = ALLOWED
) -> PredictedStep:
    """Compiles and times one step.

    Args:
      compare: with the peer's order of work, which is compiled and timed in the same run.
      models: cost models, that of the central figures first.
    Raises:
      KimiError: the options do not fit the model, see `StepOptions.plan`; `Refused` if the compiler
        does not take the program.
      InputError: there is no skeleton for these options.
    """
    plan = options.plan()
    targets = [Target(_DECODE, asdict(options))]
    if compare:
        _check_comparable(options)
        targets.append(Target(_SKELETON, {"rows": options.rows, "context": options.context}))
    with tempfile.TemporaryDirectory(prefix="kimi-predict-") as folder:
        built, *peer = map(_done, compile_targets(targets, dump=Path(folder)))
        module = parse_module(module_file(Path(folder)).read_text())
    kernel = built.kernel("decode")
    inputs, names = kernel_inputs(plan, kernel, options.context), display_names(plan, kernel)
    where = slice_of(options.topology)
    predictions = tuple(simulate(kernel.program, models, inputs, where=where))
    last = built.kernel("cache_append")
    [commit] = simulate(last.program, models[:1], commit_inputs(plan, options.context))
    report = step_report(
        options.title,
        built,
        kernel,
        predictions,
        traffic=traffic_by_family(predictions[0].hbm_arrays),
        names=names,
        exchanges={kind.name: len(plan.rounds(kind)) for kind in plan.layout.layer_of_kind},
        beside={"cache_append": commit.us, "copy of opened": _opened_us(module, plan, models[0])},
        layers=plan.layout.config.num_hidden_layers,
    )
    comparison = None
    if peer:
        skeleton = peer[0].kernel("skeleton")
        ordered = simulate(skeleton.program, models, skeleton_inputs(skeleton, options.rows))
        comparison = Comparison(predictions, tuple(ordered))
    return PredictedStep(plan, kernel, inputs, names, report, comparison)


def _opened_us(module: Module, plan: Plan, costs: CostModel) -> float:
    """Microseconds in which XLA moves what `commit` writes into the cache, from and to HBM."""
    shape, _ = state_shapes(plan)["cache"]
    copies = (
        array.nbytes
        for instruction in module.computations[module.entry].instructions
        if instruction.opcode in ("copy", "copy-done")
        for array in instruction.results[:1]
        if array.shape[-2:] == tuple(shape[-2:]) and array.shape[-5:-4] == tuple(shape[:1])
    )
    return sum(copy_us(costs, size) for size in copies)


def row_costs(step: PredictedStep, options: StepOptions) -> dict[int, float]:
    """Predicted milliseconds of verifying 1, 2, .. rows of a block, by the step's first model.

    Several rows take the block's kernel, a single one its own, which is compiled here.

    Args:
      options: those of the step.
    Raises:
      InputError: the step is no block of several rows.
    """
    rows = step.plan.rows
    if rows.block == 1:
        raise InputError(f"cost table: expected a block of several rows, found {options.title}")
    models = tuple(p.costs for p in step.report.predictions[:1])
    costs = {1: _milliseconds(predict(replace(options, rows=1), models=models))}
    where = slice_of(options.topology)
    for live in range(2, rows.block + 1):
        inputs = kernel_inputs(step.plan, step.kernel, options.context, live)
        [found] = simulate(step.kernel.program, models, inputs, where=where)
        costs[live] = (found.us + sum(step.report.beside.values())) / 1000
    return costs


def _milliseconds(step: PredictedStep) -> float:
    report = step.report
    return (report.predictions[0].us + sum(report.beside.values())) / 1000


def _check_comparable(options: StepOptions) -> None:
    base = StepOptions(rows=options.rows, block=options.rows > 1)
    same = replace(options, context=base.context, experts=base.experts) == base
    if not same or options.rows not in _PEER_ROWS:
        raise InputError(
            "comparison: expected the published model on its slice, with 1 row or a block of 8, "
            f"found {options.title}"
        )


def _done(outcome: Built | KimiError) -> Built:
    if isinstance(outcome, KimiError):
        raise outcome
    return outcome


def layer_timeline(step: PredictedStep, mla: bool) -> Timeline:
    """What happens when in one MoE layer, KDA or MLA, of the compiled schedule.

    Raises:
      InputError: the model has no such layer in the kernel's loop.
    """
    layout = step.plan.layout
    wanted = LayerKind(mla, moe=True)
    layers = [i for i in range(layout.config.num_hidden_layers) if layout.kind(i) == wanted]
    if not layers:
        raise InputError(f"timeline: expected a {wanted.name} layer in the model, found none")
    layer = next((i for i in layers if i >= _WARM_LAYERS), layers[(len(layers) - 1) // 2])
    return record(
        step.kernel.program,
        Window(index=layer - layout.config.first_k_dense_replace),
        inputs=step.inputs,
        names=step.names,
        costs=step.report.predictions[0].costs,
        title=f"{step.report.title}: layer {layer} ({wanted.name})",
    )
