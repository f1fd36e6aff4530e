"""Makes the small K3: trains target and drafter, calibrates, exports and scores.

    python -m kimi.tiny.pipeline --corpus DIR --out DIR

Every step leaves files in the directory of the run, and steps whose files are there are skipped:
after an interruption the same command goes on. With --smoke everything is tiny.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kimi.tiny.training import calibration, drafter, layout, scores, target
from kimi.tiny.training.run import Run, command


def run_all(run: Run) -> None:
    """Does what is not done yet, in order."""
    steps: tuple[tuple[Path, Callable[[Run], None]], ...] = (
        (run.target_file, target.train),
        (run.drafter_file, drafter.train),
        (run.calibrated_file, calibration.calibrate),
        (run.checkpoint, layout.export),
        (run.scores_file, scores.report),
    )
    for result, step in steps:
        if result.exists():
            print(f"{result}: is there already", flush=True)
            continue
        start = time.monotonic()
        step(run)
        print(f"{result}: made in {time.monotonic() - start:.0f} s", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: returns the exit status."""
    return command("pipeline", __doc__, run_all, argv)


if __name__ == "__main__":
    sys.exit(main())
