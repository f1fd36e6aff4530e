"""Former place of what is in `kimi.assets` and `kimi.lab.train` now."""

from kimi.assets import TINY_K3 as ASSETS

__all__ = ["ASSETS"]
