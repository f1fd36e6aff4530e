"""`python -m kimi`."""

import sys

from kimi.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
