"""Trains the drafter of the small K3.

    python -m kimi.tiny.train_drafter --corpus DIR --out DIR

Reads `target.safetensors`, lets it write the training sequences, and writes `drafter.safetensors`.
An interrupted run writes the sequences again and goes on where its state was last saved.
"""

import sys
from collections.abc import Sequence

from kimi.tiny.training.drafter import train
from kimi.tiny.training.run import command


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: returns the exit status."""
    return command("train_drafter", __doc__, train, argv, trains="drafter")


if __name__ == "__main__":
    sys.exit(main())
