"""Writes a store: a process of its own for the tests that kill it. Imports no jax."""

import sys
from pathlib import Path

from kimi.checkpoint import Checkpoint
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.loading.journal import Share
from kimi.loading.manifest import Identity
from kimi.loading.preshard import preshard
from kimi.loading.stream import Limits


def main(model: str, store: str, index: str, count: str) -> None:
    checkpoint = Checkpoint(Path(model))
    layout = Layout(checkpoint.config, Mesh(4, 2))
    identity = Identity.of(checkpoint, layout)
    print("ready", flush=True)
    limits, share = Limits(readers=2, workers=1), Share(int(index), int(count))
    preshard(checkpoint, identity, Path(store), limits, lambda done: None, share)
    assert "jax" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
