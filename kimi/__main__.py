"""`python -m kimi`, and `kimi-k3`."""

import sys

from kimi.process import begin


def main() -> None:
    """Runs the command line as this process."""
    begin()
    from kimi.cli.main import main as run  # slow: import after `begin`

    sys.exit(run())


if __name__ == "__main__":
    main()
