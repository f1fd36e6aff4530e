"""Makes the small K3: trains target and drafter, calibrates, exports and scores.

Every step leaves a file in the directory of the run, and steps whose files are there are skipped:
after an interruption the same command goes on.
"""

import time
from collections.abc import Callable
from pathlib import Path

from kimi.lab.train import calibration, drafter, layout, scores, target
from kimi.lab.train.run import Run

Step = Callable[[Run], None]

STEPS: dict[str, tuple[Callable[[Run], Path], Step]] = {
    "target": (lambda run: run.target_file, target.train),
    "drafter": (lambda run: run.drafter_file, drafter.train),
    "calibrate": (lambda run: run.calibrated_file, calibration.calibrate),
    "export": (lambda run: run.checkpoint, layout.export),
    "score": (lambda run: run.scores_file, scores.report),
}
"""In order: what a step makes, and how. Each reads what those before it have made."""


def run_all(run: Run) -> None:
    """Does what is not done yet, in order."""
    for file, step in STEPS.values():
        result = file(run)
        if result.exists():
            print(f"{result}: is there already", flush=True)
            continue
        start = time.monotonic()
        step(run)
        print(f"{result}: made in {time.monotonic() - start:.0f} s", flush=True)
