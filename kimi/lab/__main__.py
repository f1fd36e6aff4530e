"""`python -m kimi.lab`."""

import sys

from kimi.process import begin

if __name__ == "__main__":
    begin()
    from kimi.lab.main import main  # slow to import: Ctrl-C is minded from here on

    sys.exit(main())
