"""Former name of `python -m kimi.lab train`."""

import sys

from kimi.aliases import run_alias
from kimi.process import begin

if __name__ == "__main__":
    begin()
    sys.exit(run_alias("kimi.tiny.pipeline"))
