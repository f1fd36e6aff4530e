"""`python -m kimi.lab`."""

import sys

from kimi.lab.main import main

if __name__ == "__main__":
    sys.exit(main())
