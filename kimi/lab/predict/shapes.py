"""A model and its state as shapes on devices that are not there, for whole programs."""

from typing import Any

import jax
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding

from kimi.config import DraftConfig, ModelConfig
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft.layout import DraftLayout, DraftWeights
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout, Weights
from kimi.kernels.mesh import default_mesh
from kimi.kernels.refs import weight_shapes
from kimi.lab.predict.topology import DEFAULT_TOPOLOGY, compile_mesh
from kimi.loading.arrays import dtype
from kimi.runtime.backend import BlockBackend
from kimi.runtime.model import SPLIT, WHOLE, DeviceModel
from kimi.runtime.state import state_specs

CACHE_TOKENS = 131072  # room of the caches in reports

# What reports call the arrays of a state.
_STATES = {
    "kda": "KDA states", "cache": "MLA cache", "draft": "drafter's context", "taps": "taps",
}  # fmt: skip


def array(devices: DeviceMesh, spec: Any, shape: tuple[int, ...], kind: Any) -> Any:
    """An argument of a program, of such a dtype."""
    return jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(devices, spec))


def model_shapes(
    config: ModelConfig, drafter: DraftConfig, experts: str, topology: str = DEFAULT_TOPOLOGY
) -> DeviceModel:
    """A model on all cores of a slice.

    Args:
      experts: `mxfp4` or `fp8`.
      topology: a name that the compiler knows.

    Raises:
      LayoutError: the model does not fit so.
    """
    devices = compile_mesh(topology, axes=(AXIS,))
    layout = Layout(config, default_mesh(config, devices.size), ExpertFormat(experts))
    draft = DraftLayout(drafter, config, layout.mesh)

    def split(shape: tuple[int, ...], kind: Any) -> Any:
        return array(devices, SPLIT, (devices.size, *shape), kind)

    weights = Weights(**{name: split(*found) for name, found in weight_shapes(layout).items()})
    arrays = DraftWeights(*(split(draft.shapes[n], dtype(n)) for n in DraftWeights._fields))
    return DeviceModel(layout, weights, draft, arrays, devices)


def state_arrays(backend: BlockBackend) -> Any:
    """The state of one drafted sequence."""
    return jax.tree.map(
        lambda a, spec: array(backend.model.devices, spec, a.shape, a.dtype),
        backend.shapes(),
        state_specs(drafts=True),
    )


def whole(model: DeviceModel, shape: tuple[int, ...], kind: Any) -> Any:
    """An argument that all ranks have."""
    return array(model.devices, WHOLE, shape, kind)


def family(path: str) -> str:
    """What an argument counts for: the path is of (weights, state, more)."""
    argument, *rest = path.lstrip("[").replace("]", ".").split(".")
    names = [part for part in rest if part]
    if argument == "0":
        return names[1] if names[0] == "target" else f"drafter's {names[1]}"
    return _STATES.get(names[-1], "state") if argument == "1" else "request"
