"""The program of many drafted steps at full size, for the compiler: what it holds and copies.

A step's time comes from `steps`. This tells what XLA adds around the kernels: the memory report of
the whole program shows whether states stay where they are.
"""

from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding

from kimi.aot.compile import Subject
from kimi.aot.launch import compile_target
from kimi.aot.topology import DEFAULT_TOPOLOGY, compile_mesh
from kimi.config import DraftConfig, ModelConfig
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import default_mesh
from kimi.kernels.refs import weight_shapes
from kimi.loading.placement import Weights
from kimi.runtime.blocks import STOP_IDS, BlockPrograms, Request
from kimi.runtime.model import DRAFT_ARRAYS, SPLIT, WHOLE, DeviceModel
from kimi.runtime.state import state_shapes_of, state_specs


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
    context: int = 131072
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
        copies writes, see `kernels.commit`. The cache is not: it alone would be more.
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
    built = compile_target("kimi.aot.loops:drafted_steps", asdict(options)).compilation
    return LoopMemory(
        options, built.families, built.alias_bytes, built.families["cache"], built.temp_bytes
    )


def drafted_steps(**options: Any) -> Subject:
    """The program on all ranks; keywords are those of `LoopOptions`.

    Raises:
      KimiError: the sizes do not fit.
    """
    chosen = LoopOptions(**options)
    model = published_model(chosen.experts, chosen.topology)
    programs = BlockPrograms(model, chosen.context, chosen.steps)
    run = programs.compiled(chosen.greedy, chosen.singles)
    state = jax.tree.map(
        lambda a, spec: _array(model.devices, spec, a.shape, a.dtype),
        state_shapes_of(programs.plan, programs.draft),
        state_specs(drafts=True),
    )
    return Subject("drafted steps", run, (model.arrays, state, _request(model)), model.devices,
                   family=_family)  # fmt: skip


def published_model(experts: str, topology: str = DEFAULT_TOPOLOGY) -> DeviceModel:
    """The published model and its drafter as shapes on devices that are not there."""
    config, drafter = ModelConfig.published(), DraftConfig.published()
    devices = compile_mesh(topology, axes=(AXIS,))
    layout = Layout(config, default_mesh(config, devices.size), ExpertFormat(experts))
    draft = DraftLayout(drafter, config, layout.mesh)

    def split(shape: tuple[int, ...], dtype: Any) -> Any:
        return _array(devices, SPLIT, (devices.size, *shape), dtype)

    weights = Weights(**{name: split(*found) for name, found in weight_shapes(layout).items()})
    floats = ("vectors",)
    arrays = tuple(
        split(draft.shapes[name], np.float32 if name in floats else np.uint32)
        for name in DRAFT_ARRAYS
    )
    return DeviceModel(layout, weights, draft, arrays, devices)


def _request(model: DeviceModel) -> Request:
    """Numbers of a call."""

    def whole(shape: tuple[int, ...], dtype: Any) -> Any:
        return _array(model.devices, WHOLE, shape, dtype)

    count, real = whole((), jnp.int32), whole((), jnp.float32)
    return Request(
        count, whole((STOP_IDS,), jnp.int32), whole((9,), jnp.float32), real, real, count, real,
        count,
    )  # fmt: skip


def _array(devices: DeviceMesh, spec: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(devices, spec))


def _family(path: str) -> str:
    """What an argument counts for: the path is of (weights, state, request)."""
    argument, *rest = path.lstrip("[").replace("]", ".").split(".")
    if argument == "0":
        return "target" if int(rest[0].lstrip("[")) < 4 else "drafter"
    return next((part for part in rest if part), "state") if argument == "1" else "request"
