"""Former name of `python -m kimi.lab bench-codecs`."""

import sys

from kimi.aliases import run_alias

if __name__ == "__main__":
    sys.exit(run_alias("kimi.codecs.bench"))
