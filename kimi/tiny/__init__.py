"""Former place of what is in `kimi.assets` and `kimi.lab.train` now."""
