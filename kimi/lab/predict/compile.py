"""Compiles a program for TPU v7 devices that are not there, and reports what it needs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from kimi.lab.predict.failures import CompileError, explain


@dataclass(frozen=True)
class Buffer:
    """A line of a program's own buffer table, shown when the compiler refuses it."""

    name: str
    space: str
    size_bytes: int


def whole_argument(path: str) -> str:
    """The default family of an argument leaf: the top level of its path."""
    return path.lstrip("[.").replace("'", "").split("]")[0].split("[")[0].split(".")[0]


@dataclass(frozen=True)
class Subject:
    """What to compile.

    Attributes:
      name: for messages.
      function: takes `arguments`; usually a `jax.jit(jax.shard_map(...))`.
      arguments: pytrees of `jax.ShapeDtypeStruct` with shardings over `mesh`.
      mesh: compile-only devices, see `topology.compile_mesh`.
      family: names the family that an argument leaf's HBM bytes count for, by its path in the
        tuple of arguments, e.g. `[2]['kda']['wq']`.
      buffers: the program's own buffer table, if it has one.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    mesh: Mesh
    family: Callable[[str], str] = whole_argument
    buffers: Sequence[Buffer] = ()


@dataclass(frozen=True)
class Compilation:
    """What one core of a compiled program needs.

    Attributes:
      lower_s, compile_s: seconds.
      code_bytes: generated code.
      argument_bytes, output_bytes, temp_bytes, alias_bytes: HBM as the compiler counts it,
        padded to its tiles; aliased outputs are part of the arguments.
      families: unpadded argument bytes by family, largest first.
      hlo_kernels: names of the Pallas kernels in the program.
    """

    lower_s: float
    compile_s: float
    code_bytes: int
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    families: dict[str, int] = field(default_factory=dict)
    hlo_kernels: tuple[str, ...] = ()


def compile_subject(subject: Subject, module: Path | None = None) -> Compilation:
    """Lowers and compiles.

    Args:
      module: where the compiled module is written, see `module`.
    Raises:
      CompileError: the compiler or the lowering refused the program.
    """
    begin = time.perf_counter()
    # Some lowerings ask which TPU they are for; without a mesh they find the CPU.
    with jax.sharding.use_abstract_mesh(subject.mesh.abstract_mesh):
        function = subject.function
        jitted = function if hasattr(function, "lower") else jax.jit(function)
        try:
            lowered = jitted.lower(*subject.arguments)
            lowered_at = time.perf_counter()
            compiled = lowered.compile()
        except CompileError:
            raise
        except (RuntimeError, ValueError, NotImplementedError) as error:
            # jax reports a refusal of XLA, of Mosaic and of its own lowering by these classes.
            raise explain(str(error), subject.name) from error
    end = time.perf_counter()
    memory = compiled.memory_analysis()
    text = compiled.as_text()
    if module:
        module.write_text(text)
    return Compilation(
        lower_s=lowered_at - begin,
        compile_s=end - lowered_at,
        code_bytes=memory.generated_code_size_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        families=bytes_by_family(subject.arguments, subject.family),
        hlo_kernels=_kernels(text),
    )


def bytes_by_family(arguments: object, family: Callable[[str], str]) -> dict[str, int]:
    """Unpadded bytes per device of abstract arrays, by family of their path, largest first.

    An array without a sharding counts whole.
    """
    total: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arguments):
        sharding = getattr(leaf, "sharding", None)
        shape = sharding.shard_shape(leaf.shape) if sharding else leaf.shape
        name = family(jax.tree_util.keystr(path))
        total[name] = total.get(name, 0) + -(-prod(shape) * _bits(leaf.dtype) // 8)
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _bits(dtype: Any) -> int:
    name = jax.numpy.dtype(dtype).name
    return 4 if name in ("int4", "uint4", "float4_e2m1fn") else jax.numpy.dtype(dtype).itemsize * 8


def _kernels(hlo: str) -> tuple[str, ...]:
    calls = (line for line in hlo.splitlines() if 'custom_call_target="tpu_custom_call"' in line)
    return tuple(call.split("=")[0].strip().removeprefix("ROOT ").lstrip("%") for call in calls)
