"""Compiles in a subprocess with a clean libtpu, and reads back the schedule it dumped.

    built = compile_target("package.module:build", {"rows": 1})
    [prediction] = simulate(built.kernel().program)

`build` is importable, takes the options as keywords (JSON values) and returns a `compile.Subject`.
Several targets can share one process, whose start takes longer than a small compile.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kimi.errors
from kimi.errors import InputError, KimiError
from kimi.lab.predict.bundles import Allocation, Program
from kimi.lab.predict.compile import Buffer, Compilation
from kimi.lab.predict.dump import (
    ALLOCATIONS,
    CONSTANT,
    SCHEDULE,
    parse_allocations,
    parse_bundles,
    require_known_libtpu,
    schedule_files,
)
from kimi.lab.predict.failures import CompileError, LargestBuffer
from kimi.lab.predict.topology import compiler_environment

TIMEOUT_S = 1800


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel: its name, schedule and buffers."""

    name: str
    program: Program
    allocations: list[Allocation]

    def peak_bytes(self, space: str) -> int:
        """Highest byte used in a memory space: `vmem`, `smem` or `sflag`; spills included."""
        ends = [
            (a.offset_bytes or 0) + a.size_bytes
            for a in self.allocations
            if a.space == space and CONSTANT not in a.tag
        ]
        return max(ends, default=0)


@dataclass(frozen=True)
class Built:
    """A compiled program."""

    compilation: Compilation
    kernels: list[Kernel]
    buffers: list[Buffer]

    def kernel(self, name: str | None = None) -> Kernel:
        """The kernel whose name starts with `name`, by default the one with most bundles.

        Raises:
          InputError: none such.
        """
        found = [k for k in self.kernels if name is None or k.name.startswith(name)]
        if not found:
            names = ", ".join(k.name for k in self.kernels) or "none"
            raise InputError(f"kernel: expected {name or 'a Pallas kernel'}, found {names}")
        return max(found, key=lambda k: len(k.program.bundles))


class Refused(CompileError):
    """A `CompileError` with the program's own buffer table."""

    def __init__(self, error: CompileError, buffers: Sequence[Buffer]) -> None:
        super().__init__(
            str(error),
            kind=error.kind,
            space=error.space,
            largest=error.largest,
            detail=error.detail,
        )
        self.buffers = list(buffers)


@dataclass(frozen=True)
class Target:
    """What a subprocess builds: `package.module:function`, and JSON keywords for it."""

    builder: str
    options: Mapping[str, object] = field(default_factory=dict)


def compile_target(
    builder: str,
    options: Mapping[str, object] | None = None,
    *,
    source_lines: bool = False,
    path: Sequence[str] = (),
    dump: Path | None = None,
) -> Built:
    """Compiles one target, see `compile_targets`.

    Raises:
      Refused: the compiler refused the program.
      KimiError: what the builder raised.
    """
    targets = (Target(builder, options or {}),)
    [outcome] = compile_targets(targets, source_lines=source_lines, path=path, dump=dump)
    if isinstance(outcome, KimiError):
        raise outcome
    return outcome


def compile_targets(
    targets: Sequence[Target],
    *,
    source_lines: bool = False,
    path: Sequence[str] = (),
    dump: Path | None = None,
) -> list[Built | KimiError]:
    """Compiles targets in one subprocess and reads every kernel's schedule.

    Args:
      source_lines: schedule with source lines instead of scope names.
      path: directories to import builders from, before the usual ones.
      dump: directory for the schedules and for the compiled modules, see `module.module_file`; by
        default a temporary one that is removed.
    Returns:
      For each target what was built, or why it was refused; after a crash of the compiler, the
      crash for the target that was being compiled and for those after it.
    Raises:
      InputError: libtpu is missing, or one whose dumps are not known.
    """
    require_known_libtpu()
    with tempfile.TemporaryDirectory(prefix="kimi-predict-") as temporary:
        directory = dump or Path(temporary, "dump")
        directory.mkdir(parents=True, exist_ok=True)
        outcome_file = Path(temporary, "outcomes.json")
        outcome_file.write_text("[]")
        job = {
            "targets": [(target.builder, dict(target.options)) for target in targets],
            "path": list(path),
            "dump": str(directory),
            "outcome": str(outcome_file),
        }
        run = subprocess.run(
            [sys.executable, "-m", "kimi.lab.predict.worker"],
            input=json.dumps(job),
            env=compiler_environment(directory, source_lines=source_lines),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        outcomes = json.loads(outcome_file.read_text())
        found = [_built(outcome, directory) for outcome in outcomes]
        missing = targets[len(found) :]
        return found + [_died(target.builder, run.returncode, run.stderr) for target in missing]


def _died(target: str, code: int, errors: str) -> CompileError:
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    fatal = next((line for line in lines if line.startswith("F")), lines[-1] if lines else "")
    line = f"{target}: the compiler process ended with code {code}: {fatal[:300]}"
    return CompileError(line, kind="CompilerCrash", detail=errors)


def _built(outcome: dict[str, Any], directory: Path) -> Built | KimiError:
    buffers = [Buffer(**buffer) for buffer in outcome.get("buffers", [])]
    if "refused" in outcome:
        error = CompileError(
            outcome["refused"],
            kind=outcome["kind"],
            space=outcome["space"],
            largest=tuple(LargestBuffer(**buffer) for buffer in outcome["largest"]),
            detail=outcome["detail"],
        )
        return Refused(error, buffers)
    if "error" in outcome:
        kind: type[KimiError] = getattr(kimi.errors, outcome["class"], KimiError)
        return kind(outcome["error"])
    fields = outcome["compilation"]
    compilation = Compilation(**fields | {"hlo_kernels": tuple(fields["hlo_kernels"])})
    # XLA's own fusions are dumped as well: they are not read if there are Pallas kernels.
    schedules = schedule_files(directory / name for name in outcome["files"])
    names = [n for n in schedules if n in compilation.hlo_kernels] or list(schedules)
    return Built(compilation, [read_kernel(n, schedules[n]) for n in names], buffers)


def read_kernel(name: str, passes: Mapping[str, Path]) -> Kernel:
    """A kernel or fusion from its dump files, see `dump.schedule_files`."""
    buffers = passes.get(ALLOCATIONS)
    return Kernel(
        name,
        parse_bundles(passes[SCHEDULE].read_text(errors="replace"), name),
        parse_allocations(buffers.read_text(errors="replace") if buffers else ""),
    )
