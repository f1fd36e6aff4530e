"""The commands of `python -m kimi.lab`: a module each, as in `kimi.cli`."""
