"""The figures of one compiled step, as text and as JSON. Every time in it is predicted."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kimi.aot.compile import Buffer, Compilation
from kimi.aot.failures import CompileError
from kimi.aot.launch import Built, Kernel, Refused
from kimi.aot.simulate import Prediction

VMEM_BYTES = int(63.94 * 2**20)  # usable, with vmem_limit_bytes raised
SMEM_BYTES = 2**20
SEMAPHORE_BYTES = 16 * 2**10
HBM_BYTES = int(94.74 * 2**30)
# The compiler splits longer kernels into overlays that are fetched during the run.
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
      bundles: VLIW bundles of the kernel.
      slots: instructions by issue slot, each bundle counted once.
      predictions: one per knob set, the calibrated one first.
    """

    title: str
    compilation: Compilation
    memory: tuple[Memory, ...]
    bundles: int
    slots: dict[str, int]
    predictions: tuple[Prediction, ...]

    @property
    def problems(self) -> list[str]:
        """Reasons to distrust the figures, and limits that are exceeded."""
        found = self.predictions[0].problems
        found += [
            f"{m.space}: {m.used_bytes} bytes used of {m.limit_bytes}"
            for m in self.memory
            if m.used_bytes > m.limit_bytes
        ]
        if self.bundles > INSTRUCTION_BUNDLES:
            found.append(f"code: {self.bundles} bundles, over {INSTRUCTION_BUNDLES} it is paged")
        return found


def step_report(
    title: str, built: Built, kernel: Kernel, predictions: Sequence[Prediction]
) -> StepReport:
    """Puts the figures of a compiled program and the predictions of its kernel together."""
    compilation = built.compilation
    hbm = compilation.argument_bytes + compilation.temp_bytes + compilation.output_bytes
    return StepReport(
        title=title,
        compilation=compilation,
        memory=(
            Memory("VMEM", kernel.peak_bytes("vmem"), VMEM_BYTES),
            Memory("SMEM", kernel.peak_bytes("smem"), SMEM_BYTES),
            Memory("semaphores", kernel.peak_bytes("sflag"), SEMAPHORE_BYTES),
            Memory("HBM", hbm - compilation.alias_bytes, HBM_BYTES),
        ),
        bundles=len(kernel.program.bundles),
        slots=dict(kernel.program.slots.most_common()),
        predictions=tuple(predictions),
    )


def report_json(report: StepReport) -> str:
    """The report as one JSON object; times carry `predicted` in their names."""
    first = report.predictions[0]
    return json.dumps(
        {
            "title": report.title,
            "compilation": asdict(report.compilation),
            "memory": {m.space: asdict(m) for m in report.memory},
            "bundles": report.bundles,
            "slots": report.slots,
            "hbm_bytes_per_step": first.hbm_bytes,
            "ici_bytes_per_step": first.ici_bytes,
            "exchange_rounds": first.exchange_rounds,
            "signal_rounds": first.signal_rounds,
            "predicted": [_prediction_fields(p) for p in report.predictions],
            "problems": report.problems,
            "unknown_scalars": first.unknown,
        },
        indent=2,
    )


def _prediction_fields(p: Prediction) -> dict[str, object]:
    us = p.knobs.us
    return {
        "knobs": asdict(p.knobs),
        "predicted_us": round(p.us, 3),
        "predicted_parts_us": {
            "bundles": round(us(p.bundles), 3),
            "unit_interlocks": round(us(p.interlock), 3),
            "waits": round(us(p.wait), 3),
        },
        "predicted_hbm_busy_us": round(us(p.hbm_busy), 3),
        "predicted_scopes_us": {name: round(us(s.total), 3) for name, s in p.scopes.items()},
    }


def report_text(report: StepReport) -> str:
    """The report as a table for a terminal."""
    c, first = report.compilation, report.predictions[0]
    lines = [report.title, ""]
    lines += [
        f"{m.space:12s} {_size(m.used_bytes):>12s} of {_size(m.limit_bytes):>12s} "
        f"{100 * m.used_bytes / m.limit_bytes:5.1f} %"
        for m in report.memory
    ]
    lines += ["", "HBM per core, unpadded:"]
    lines += [f"  {name:24s} {_size(n):>12s}" for name, n in c.families.items()]
    lines += [f"  {'temporaries':24s} {_size(c.temp_bytes):>12s}", ""]
    lines += [
        f"code         {_size(c.code_bytes):>12s}, kernel {report.bundles} bundles",
        f"compiled in  {c.compile_s:12.1f} s, lowered in {c.lower_s:.1f} s",
        f"HBM traffic  {first.hbm_bytes / 1e6:12.1f} MB a step",
        f"exchange     {first.ici_bytes / 1e6:12.3f} MB a step, {first.exchange_rounds} rounds",
        "",
    ]
    lines += _prediction_table(report.predictions)
    lines += ["", f"predicted by scope ({first.knobs.name}), us: issue, interlocks, waits"]
    us = first.knobs.us
    for name, parts in list(first.scopes.items())[:_TOP]:
        cells = (parts.total, parts.bundles, parts.interlock, parts.wait)
        lines.append(f"  {name:24s} " + " ".join(f"{us(cycles):10.2f}" for cycles in cells))
    lines += [f"warning: {problem}" for problem in report.problems]
    if first.unknown:
        count = sum(first.unknown.values())
        lines.append(f"note: {count} reads of scalars unknown to the schedule were taken as 0")
    return "\n".join(lines) + "\n"


def _prediction_table(predictions: Sequence[Prediction]) -> list[str]:
    head = ("step", "issue", "interlocks", "waits", "HBM busy")
    lines = [f"{'predicted, us':24s} " + " ".join(f"{name:>10s}" for name in head)]
    for p in predictions:
        cells = (p.cycles, p.bundles, p.interlock, p.wait, p.hbm_busy)
        lines.append(f"{p.knobs.name:24s} " + " ".join(f"{p.knobs.us(c):10.1f}" for c in cells))
    return lines


def refusal_text(error: CompileError) -> str:
    """A compiler's refusal with its largest buffers and the program's own buffer table."""
    lines = [f"error: {error}"]
    if error.largest:
        lines += ["", "largest buffers, by the compiler:"]
        lines += [f"  {b.size:>10s}  {b.shape}  {b.tag}" for b in error.largest[:_TOP]]
    buffers: Sequence[Buffer] = error.buffers if isinstance(error, Refused) else ()
    if buffers:
        lines += ["", "buffer table of the program:"]
        ordered = sorted(buffers, key=lambda b: -b.size_bytes)
        lines += [f"  {_size(b.size_bytes):>12s}  {b.space:6s} {b.name}" for b in ordered]
    return "\n".join(lines) + "\n"


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
