"""A process that compiles subjects: libtpu reads its flags only once, when it loads.

Started by `launch.compile_targets` with `-m kimi.lab.predict.worker`; reads a job as JSON
from standard input and writes the outcomes to the file that the job names.
"""

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from kimi.errors import KimiError
from kimi.lab.predict.compile import Subject, compile_subject
from kimi.lab.predict.failures import CompileError
from kimi.lab.predict.module import module_file


def main() -> None:
    """Compiles the targets of one job in turn."""
    job = json.load(sys.stdin)
    sys.path[:0] = job["path"]
    dump = Path(job["dump"])
    outcomes: list[dict[str, Any]] = []
    for target, options in job["targets"]:
        before = {file.name for file in dump.iterdir()}
        outcome = _outcome(target, options, module_file(dump, len(outcomes)))
        outcome["files"] = sorted({file.name for file in dump.iterdir()} - before)
        outcomes.append(outcome)
        # Kept after every target: the compiler may abort the process in the next one.
        Path(job["outcome"]).write_text(json.dumps(outcomes))


def _outcome(target: str, options: dict[str, Any], module: Path) -> dict[str, Any]:
    buffers: list[dict[str, Any]] = []
    try:
        package, _, name = target.partition(":")
        subject = getattr(importlib.import_module(package), name)(**options)
        assert isinstance(subject, Subject), f"{target} must return a Subject"
        buffers = [dataclasses.asdict(buffer) for buffer in subject.buffers]
        compilation = dataclasses.asdict(compile_subject(subject, module))
        return {"compilation": compilation, "buffers": buffers}
    except CompileError as error:
        fields = {"kind": error.kind, "space": error.space, "detail": error.detail}
        largest = [dataclasses.asdict(buffer) for buffer in error.largest]
        return {"refused": str(error), **fields, "largest": largest, "buffers": buffers}
    except KimiError as error:
        return {"error": str(error), "class": type(error).__name__}


if __name__ == "__main__":
    main()
