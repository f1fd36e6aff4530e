"""Calibrates the drafter's confidence.

    python -m kimi.tiny.calibrate --corpus DIR --out DIR

Reads `target.safetensors` and `drafter.safetensors` and writes `calibrated.safetensors`.
"""

import sys
from collections.abc import Sequence

from kimi.tiny.training.calibration import calibrate
from kimi.tiny.training.run import command


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: returns the exit status."""
    return command("calibrate", __doc__, calibrate, argv)


if __name__ == "__main__":
    sys.exit(main())
