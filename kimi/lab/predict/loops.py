"""The program of many drafted steps at full size, for the compiler: what it holds and copies.

A step's time comes from `steps`. This tells what XLA adds around the kernels: the memory report of
the whole program shows whether states stay where they are.
"""

from dataclasses import asdict, dataclass
from typing import Any

import jax

from kimi.config import DraftConfig, ModelConfig
from kimi.decoding.programs import Programs
from kimi.decoding.requests import request
from kimi.decoding.sampling import Sampling
from kimi.kernels.experts import ExpertFormat
from kimi.lab.predict.compile import Subject
from kimi.lab.predict.launch import compile_target
from kimi.lab.predict.shapes import CACHE_TOKENS, family, model_shapes, state_arrays, whole
from kimi.lab.predict.topology import DEFAULT_TOPOLOGY
from kimi.runtime.backend import BlockBackend


@dataclass(frozen=True)
class LoopOptions:
    """Which program, of the published model and its drafter.

    Attributes:
      steps: of a call.
      context: tokens that the cache has room for.
      singles: steps may verify a single row, with the kernel that is made for one.
      greedy: or sampled.
      experts: `mxfp4` or `fp8`.
      topology: a name that the compiler knows.
    """

    steps: int = 8
    context: int = CACHE_TOKENS
    singles: bool = True
    greedy: bool = True
    experts: str = ExpertFormat.MXFP4.value
    topology: str = DEFAULT_TOPOLOGY


@dataclass(frozen=True)
class LoopMemory:
    """HBM bytes of one core, as the compiler counts them.

    Attributes:
      options: of the program.
      arguments: by family; states stay where they are if they are donated.
      donated: of the arguments, those whose place the results take.
      cache: of the MLA layers, among the donated.
      temporaries: with what is copied when the program begins: everything that a kernel with remote
        copies writes, see `kernels.cache_append`. The cache is not: it alone would be more.
    """

    options: LoopOptions
    arguments: dict[str, int]
    donated: int
    cache: int
    temporaries: int


def loop_memory(options: LoopOptions) -> LoopMemory:
    """Compiles the program in a process of its own.

    Raises:
      KimiError: the sizes do not fit; `Refused` if the compiler does not take the program.
    """
    built = compile_target("kimi.lab.predict.loops:drafted_steps", asdict(options)).compilation
    return LoopMemory(
        options, built.families, built.alias_bytes, built.families["MLA cache"], built.temp_bytes
    )


def drafted_steps(**options: Any) -> Subject:
    """The program on all ranks; keywords are those of `LoopOptions`.

    Raises:
      KimiError: the sizes do not fit.
    """
    chosen = LoopOptions(**options)
    model = model_shapes(
        ModelConfig.published(), DraftConfig.published(), chosen.experts, chosen.topology
    )
    backend = BlockBackend(model, chosen.context)
    rows = frozenset({1, backend.block} if chosen.singles else {backend.block})
    run = Programs(backend, chosen.steps).compiled(chosen.greedy, rows)
    asked = jax.eval_shape(lambda: request(1, frozenset(), None, [Sampling()]))
    numbers = jax.tree.map(lambda a: whole(model, a.shape, a.dtype), asked)
    arguments = model.arrays, state_arrays(backend), numbers
    return Subject("drafted steps", run, arguments, model.devices, family=family)
