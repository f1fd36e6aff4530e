"""Compiled programs found again without tracing, which takes longer than reading them.

jax keeps a compiled program under what it says; to say it, a function must be traced, and for that
flax be imported. What a function would say is known beforehand if its code, the shapes of its
arguments and everything else that it depends on are as they were.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

import kimi
from kimi.program_cache import Store, bypassed
from kimi.reference.tensors import Shapes

READ_EVENT = "/jax/core/compile/kept_program"  # its span counts as compiling does
_CODE = ("config", "reference", "decoding")  # parts of this package that say what is computed
_PACKAGES = ("jax", "jaxlib", "flax", "numpy")


@dataclass(frozen=True)
class Kept:
    """The programs of one model.

    Attributes:
      store: where they are kept.
      made_of: everything that they depend on beside their arguments' shapes: see `fingerprint`.
    """

    store: Store
    made_of: str

    def shapes(self, name: str, compute: Callable[[], Shapes]) -> Shapes:
        """The shapes of a module's parameters, computed now or in an earlier run."""
        key = f"shapes-{name}-{self.made_of}"
        if kept := self.store.get(key):
            return {name: tuple(shape) for name, shape in json.loads(kept).items()}
        shapes = compute()
        self.store.put(key, json.dumps(shapes).encode())
        return shapes

    def program(
        self,
        name: str,
        function: Callable[..., Any],
        donate: int | None,
        args: tuple[Any, ...],
        result: Any,
    ) -> Callable[..., Any]:
        """The function, compiled for such arguments now or in an earlier run.

        Args:
          name: says with `made_of` and the shapes of `args` what the function computes.
          function: of this package.
          donate: number of the argument that is used up, if one is.
          args: trees of arrays, the first one a `jax.Array`.
          result: a tree of the form of its result.
        """
        leaves, tree = jax.tree.flatten((args, {}))
        shapes = [(leaf.shape, str(leaf.dtype)) for leaf in leaves]
        asked = repr((self.made_of, name, str(tree), shapes)).encode()
        key = f"{name}-{hashlib.sha256(asked).hexdigest()}"
        if kept := self.store.get(key):
            start, form = time.time(), jax.tree.structure(result)
            device = list(leaves[0].devices())
            with suppress(Exception):  # of another build after all: as if it were not there
                program = deserialize_and_load(
                    zlib.decompress(kept), tree, form, execution_devices=device
                )
                jax.monitoring.record_event_time_span(READ_EVENT, start, time.time())
                return program
        lowered = jax.jit(function, donate_argnums=donate).lower(*args)
        with bypassed():  # XLA does not write out what it has read: functions are missing then
            compiled = lowered.compile()
        self.store.put(key, zlib.compress(serialize(compiled)[0], 1))
        return compiled


def fingerprint(*model: str) -> str:
    """Digest of a model's description, the code, the packages and the options of jax."""
    digest = hashlib.sha256(repr(model).encode())
    root = Path(kimi.__file__).parent
    for file in sorted(file for part in _CODE for file in (root / part).rglob("*.py")):
        digest.update(file.read_bytes())
    versions = [platform.python_version(), *map(importlib.metadata.version, _PACKAGES)]
    options = sorted((k, v) for k, v in jax.config.values.items() if "cache" not in k)
    flags = os.environ.get("XLA_FLAGS")
    digest.update(repr((versions, options, flags)).encode())
    return digest.hexdigest()
