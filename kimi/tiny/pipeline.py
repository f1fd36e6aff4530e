"""Former name of `python -m kimi.lab train`."""

import sys

from kimi.aliases import run_alias

if __name__ == "__main__":
    sys.exit(run_alias("kimi.tiny.pipeline"))
