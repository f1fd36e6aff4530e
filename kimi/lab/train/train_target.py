"""Trains the small K3.

    python -m kimi.tiny.train_target --corpus DIR --out DIR

Writes `target.safetensors`. An interrupted run goes on where its state was last saved.
"""

import sys
from collections.abc import Sequence

from kimi.tiny.training.run import command
from kimi.tiny.training.target import train


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: returns the exit status."""
    return command("train_target", __doc__, train, argv, trains="target")


if __name__ == "__main__":
    sys.exit(main())
