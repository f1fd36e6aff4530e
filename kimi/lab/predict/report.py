"""The figures of one compiled step, as text and as JSON. Every time in it is predicted."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from kimi.kernels.chip import TPU_V7
from kimi.lab.predict.bands import Band, band_of
from kimi.lab.predict.compile import Buffer, Compilation
from kimi.lab.predict.failures import CompileError
from kimi.lab.predict.launch import Built, Kernel, Refused
from kimi.lab.predict.simulate import Prediction
from kimi.lab.predict.timing import Parts

# The compiler splits longer programs into overlays that are fetched during the run.
INSTRUCTION_BUNDLES = 64 * 2**10
_TOP = 12


@dataclass(frozen=True)
class Memory:
    """Bytes of one core: used, and available."""

    space: str
    used_bytes: int
    limit_bytes: int


@dataclass(frozen=True)
class StepReport:
    """What one step of a compiled program needs and is predicted to take.

    Attributes:
      title: program and options.
      compilation: sizes and seconds, see `compile.Compilation`.
      memory: VMEM, SMEM, semaphores, HBM.
      bundles, program_bundles: VLIW bundles of the kernel, and of all kernels of the program.
      slots: instructions by issue slot, each bundle counted once.
      predictions: one per cost model, the best one first.
      traffic: HBM bytes that copies move in a step, by family.
      exchanges: exchanges in one layer, by kind of layer, as the program's own schedule has them.
      names: display names of buffers and semaphores.
      beside: predicted microseconds of the program's other kernels, not in the other figures.
      layers: of the model, for figures a layer.
    """

    title: str
    compilation: Compilation
    memory: tuple[Memory, ...]
    bundles: int
    program_bundles: int
    slots: dict[str, int]
    predictions: tuple[Prediction, ...]
    traffic: dict[str, int]
    exchanges: dict[str, int]
    names: dict[str, str]
    beside: dict[str, float]
    layers: int = 1

    @property
    def band(self) -> Band:
        """Predicted microseconds of a step over the allowed cost models."""
        return band_of([p.us for p in self.predictions])

    @property
    def waits(self) -> dict[tuple[str, str], float]:
        """Cycles by scope and semaphore, longest first; the slots of an array count as one."""
        found: defaultdict[tuple[str, str], float] = defaultdict(float)
        for stall in self.predictions[0].stalls:
            semaphore = stall.semaphore.split("[")[0]
            found[stall.scope, self.names.get(semaphore, semaphore)] += stall.cycles
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def problems(self) -> list[str]:
        """Reasons to distrust the figures, and limits that are exceeded."""
        found = self.predictions[0].problems
        found += [
            f"{m.space}: {m.used_bytes} bytes used of {m.limit_bytes}"
            for m in self.memory
            if m.used_bytes > m.limit_bytes
        ]
        return found + paging(self.program_bundles)


def paging(bundles: int) -> list[str]:
    """What is to be said of the code of a program, all its kernels together."""
    if bundles <= INSTRUCTION_BUNDLES:
        return []
    return [f"code: {bundles} bundles, over {INSTRUCTION_BUNDLES} it is paged"]


def step_report(
    title: str,
    built: Built,
    kernel: Kernel,
    predictions: Sequence[Prediction],
    *,
    traffic: Mapping[str, int] | None = None,
    exchanges: Mapping[str, int] | None = None,
    names: Mapping[str, str] | None = None,
    beside: Mapping[str, float] | None = None,
    layers: int = 1,
) -> StepReport:
    """Puts the figures of a compiled program and the predictions of its kernel together.

    Args:
      traffic, exchanges, names, beside, layers: see `StepReport`; by default by operand, none, the
        compiler's, none, 1.
    """
    compilation = built.compilation
    hbm = compilation.argument_bytes + compilation.temp_bytes + compilation.output_bytes
    return StepReport(
        title=title,
        compilation=compilation,
        memory=(
            Memory("VMEM", kernel.peak_bytes("vmem"), TPU_V7.vmem_bytes),
            Memory("SMEM", kernel.peak_bytes("smem"), TPU_V7.smem_bytes),
            Memory("semaphores", kernel.peak_bytes("sflag"), TPU_V7.semaphore_bytes),
            Memory("HBM", hbm - compilation.alias_bytes, TPU_V7.hbm_bytes),
        ),
        bundles=len(kernel.program.bundles),
        program_bundles=sum(len(k.program.bundles) for k in built.kernels),
        slots=dict(kernel.program.slots.most_common()),
        predictions=tuple(predictions),
        traffic=dict(predictions[0].hbm_arrays if traffic is None else traffic),
        exchanges=dict(exchanges or {}),
        names=dict(names or {}),
        beside=dict(beside or {}),
        layers=layers,
    )


def report_fields(report: StepReport) -> dict[str, object]:
    """The report for JSON; times carry `predicted` in their names."""
    first = report.predictions[0]
    return {
        "title": report.title,
        "compilation": asdict(report.compilation),
        "memory": {m.space: asdict(m) for m in report.memory},
        "bundles": report.bundles,
        "program_bundles": report.program_bundles,
        "slots": report.slots,
        "hbm_bytes_per_step": first.hbm_bytes,
        "hbm_bytes_by_family": report.traffic,
        "ici_bytes_per_step": first.ici_bytes,
        "messages_per_layer": round(first.messages / report.layers, 2),
        "exchange_rounds_per_layer": round(first.exchange_rounds / report.layers, 2),
        "fullest_link_bytes_per_layer": round(first.link_bytes / report.layers),
        "exchange_rounds": first.exchange_rounds,
        "signal_rounds": first.signal_rounds,
        "exchanges_per_layer": report.exchanges,
        "predicted": [_prediction_fields(p) for p in report.predictions],
        "predicted_band_us": report.band.fields(),
        "predicted_beside_us": {name: round(us, 3) for name, us in report.beside.items()},
        "predicted_waits_us": [
            {"scope": scope, "semaphore": semaphore, "us": round(first.costs.us(cycles), 3)}
            for (scope, semaphore), cycles in report.waits.items()
        ],
        "problems": report.problems,
        "unknown_scalars": first.unknown,
    }


def report_json(report: StepReport) -> str:
    """`report_fields` as text."""
    return json.dumps(report_fields(report), indent=2)


def _prediction_fields(p: Prediction) -> dict[str, object]:
    scopes = {name: _parts_fields(p, parts) for name, parts in p.scopes.items()}
    return {
        "cost_model": asdict(p.costs),
        "predicted_us": round(p.us, 3),
        "predicted_parts_us": _parts_fields(p, p.parts),
        "predicted_hbm_busy_us": round(p.costs.us(p.hbm_busy), 3),
        "predicted_scopes_us": scopes,
    }


def _cells(parts: Parts) -> dict[str, float]:
    return {
        "total": parts.total,
        "issue": parts.bundles,
        "interlocks": parts.interlock,
        "exchange": parts.exchange,
        "HBM": parts.hbm,
        "local": parts.local,
    }


def _parts_fields(p: Prediction, parts: Parts) -> dict[str, float]:
    return {name.lower(): round(p.costs.us(cycles), 3) for name, cycles in _cells(parts).items()}


def report_text(report: StepReport) -> str:
    """The report as a table for a terminal."""
    c, first = report.compilation, report.predictions[0]
    lines = [report.title, ""]
    lines += [
        f"{m.space:12s} {_size(m.used_bytes):>12s} of {_size(m.limit_bytes):>12s} "
        f"{100 * m.used_bytes / m.limit_bytes:5.1f} %"
        for m in report.memory
    ]
    lines += ["", f"{'HBM per core':24s} {'held':>12s} {'moved a step':>12s}"]
    held = c.families | {"temporaries": c.temp_bytes}
    for name in [*held, *(n for n in report.traffic if n not in held)]:
        cells = (_size(sizes[name]) if name in sizes else "-" for sizes in (held, report.traffic))
        lines.append(f"  {name:22s} " + " ".join(f"{cell:>12s}" for cell in cells))
    per_layer = "".join(f", {n} in {kind}" for kind, n in report.exchanges.items())
    lines += [
        f"  {'all':22s} {'':12s} {first.hbm_bytes / 1e9:9.3f} GB",
        "",
        f"code         {_size(c.code_bytes):>12s}, {report.bundles} bundles of the kernel, "
        f"{report.program_bundles} of the program",
        f"compiled in  {c.compile_s:12.1f} s, lowered in {c.lower_s:.1f} s",
        f"sent         {first.ici_bytes / 1e6:12.3f} MB a step",
        f"exchanges    {first.exchange_rounds:12d} rounds a step{per_layer}",
        "",
        f"a layer      {first.messages / report.layers:12.1f} messages, "
        f"{first.exchange_rounds / report.layers:.2f} rounds, "
        f"{_size(round(first.link_bytes / report.layers))} over its fullest link between chips",
        "",
        "predicted step, us; issue, unit interlocks, and waits for exchanges, HBM and local copies",
        *_prediction_table(report.predictions),
        f"predicted step, ms, over the allowed cost models: {report.band.times(1e-3).text()}",
        *(f"beside it: {name:13s} {us:10.2f}" for name, us in report.beside.items()),
        "",
        f"the same by phase ({first.costs.name}), us",
    ]
    us = first.costs.us
    for name, parts in first.scopes.items():
        cells = (f"{us(cycles):10.2f}" for cycles in _cells(parts).values())
        lines.append(f"  {name:22s} " + " ".join(cells))
    lines += ["", "longest waits, us"]
    for (scope, semaphore), cycles in list(report.waits.items())[:_TOP]:
        lines.append(f"  {scope:22s} {us(cycles):10.2f} for {semaphore}")
    lines += [f"warning: {problem}" for problem in report.problems]
    if first.unknown:
        count = sum(first.unknown.values())
        lines.append(f"note: {count} reads of scalars unknown to the schedule were taken as 0")
    return "\n".join(lines) + "\n"


def _prediction_table(predictions: Sequence[Prediction]) -> list[str]:
    head = ("step", *list(_cells(Parts()))[1:], "HBM busy")
    lines = [f"{'':24s} " + " ".join(f"{name:>10s}" for name in head)]
    for p in predictions:
        cells = (p.cycles, *list(_cells(p.parts).values())[1:], p.hbm_busy)
        lines.append(f"{p.costs.name:24s} " + " ".join(f"{p.costs.us(c):10.2f}" for c in cells))
    return lines


@dataclass(frozen=True)
class Comparison:
    """A step beside the peer's order of work, see `skeleton`; both predicted by the same simulator.

    Attributes:
      step, peer: one prediction per cost model, the best one first.
    """

    step: tuple[Prediction, ...]
    peer: tuple[Prediction, ...]

    @property
    def ratios(self) -> list[float]:
        """Step over peer, by cost model."""
        return [s.us / p.us for s, p in zip(self.step, self.peer, strict=True)]

    @property
    def band(self) -> Band:
        """Of the ratio."""
        return band_of(self.ratios)


def comparison_fields(c: Comparison) -> dict[str, object]:
    """For JSON."""
    return {
        "peer_hbm_bytes_per_step": c.peer[0].hbm_bytes,
        "peer_exchange_rounds": c.peer[0].exchange_rounds,
        "predicted_ratio_band": c.band.fields(4),
        "predicted_ratios": [round(ratio, 4) for ratio in c.ratios],
        "predicted_peer": [_prediction_fields(p) for p in c.peer],
        "peer_problems": c.peer[0].problems,
    }


def comparison_text(c: Comparison) -> str:
    """As a table."""
    lines = [f"{'order of the peer, us':24s} {'step':>10s} {'peer':>10s} {'ratio':>10s}"]
    for step, peer, ratio in zip(c.step, c.peer, c.ratios, strict=True):
        lines.append(f"{step.costs.name:24s} {step.us:10.2f} {peer.us:10.2f} {ratio:10.3f}")
    lines.append(f"ratio over the allowed cost models: {c.band.text()}")
    lines.append(
        f"HBM traffic of the skeleton {c.peer[0].hbm_bytes / 1e9:.3f} GB a step, "
        f"{c.peer[0].exchange_rounds} rounds"
    )
    lines += [f"warning: skeleton: {problem}" for problem in c.peer[0].problems]
    return "\n".join(lines) + "\n"


def refusal_text(error: CompileError) -> str:
    """A compiler's refusal with its largest buffers and the program's own buffer table."""
    return f"error: {error}\n{buffer_tables(error)}"


def buffer_tables(error: CompileError) -> str:
    """The largest buffers by the compiler and the program's own buffer table; may be empty."""
    lines = []
    if error.largest:
        lines += ["", "largest buffers, by the compiler:"]
        lines += [f"  {b.size:>10s}  {b.shape}  {b.tag}" for b in error.largest[:_TOP]]
    buffers: Sequence[Buffer] = error.buffers if isinstance(error, Refused) else ()
    if buffers:
        lines += ["", "buffer table of the program:"]
        ordered = sorted(buffers, key=lambda b: -b.size_bytes)
        lines += [f"  {_size(b.size_bytes):>12s}  {b.space:6s} {b.name}" for b in ordered]
    return "".join(f"{line}\n" for line in lines)


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
