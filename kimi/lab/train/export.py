"""Puts the small K3 into the public checkpoint's layout.

    python -m kimi.tiny.export --corpus DIR --out DIR

Reads `target.safetensors` and `calibrated.safetensors` and writes `checkpoint/`.
"""

import sys
from collections.abc import Sequence

from kimi.tiny.training.layout import export
from kimi.tiny.training.run import command


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: returns the exit status."""
    return command("export", __doc__, export, argv)


if __name__ == "__main__":
    sys.exit(main())
