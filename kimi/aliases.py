"""Commands of the laboratory under their former names.

The laboratory is not in the wheel, so it is imported by name when one of its commands is called.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence

LABORATORY = "kimi.lab"
ALIASES = {
    "kimi aot": "predict",
    "kimi bench-load": "bench-load",
    "kimi bench-start": "bench-start",
    "kimi.codecs.bench": "bench-codecs",
    "kimi.tiny.pipeline": "train",
}
"""Former name, after `python -m` -> the laboratory's command."""


def run_alias(name: str, argv: Sequence[str] | None = None) -> int:
    """Runs the command that was called `name`; returns the exit code.

    Args:
      argv: its arguments, default those of the process.
    """
    command = ALIASES[name]
    if importlib.util.find_spec(LABORATORY) is None:
        print(
            f"error: python -m {name}: expected {LABORATORY}, which a checkout of the repository "
            "has, found an installed package without it: bash scripts/setup.sh in a checkout, then "
            f"python -m {LABORATORY} {command}",
            file=sys.stderr,
        )
        return 2
    code: int = importlib.import_module(f"{LABORATORY}.main").main(
        [command, *(sys.argv[1:] if argv is None else argv)]
    )
    return code
