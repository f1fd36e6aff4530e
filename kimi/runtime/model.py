"""A model on devices: which ranks there are, and the weights of target and drafter on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding, PartitionSpec

from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.config import ModelConfig
from kimi.errors import InputError
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft.layout import DraftLayout, DraftWeights
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout, Weights
from kimi.kernels.mesh import default_mesh
from kimi.loading.load import load_checkpoint, load_store
from kimi.loading.manifest import Identity
from kimi.loading.placement import rank_devices
from kimi.loading.store import Store

SPLIT, WHOLE = PartitionSpec(AXIS), PartitionSpec()
Report = Callable[[int, int], None]


class ModelWeights(NamedTuple):
    """All weights of a model, as the compiled programs take them; None without a drafter."""

    target: Weights
    drafter: DraftWeights | None


@dataclass(frozen=True)
class DeviceModel:
    """A placed model. All arrays have a first axis of ranks.

    Attributes:
      layout: of the target; `layout.mesh` are the ranks.
      target: its weights.
      draft_layout, drafter: of the drafter, or None.
      devices: of the ranks, along the axis "ranks".
    """

    layout: Layout
    target: Weights
    draft_layout: DraftLayout | None
    drafter: DraftWeights | None
    devices: DeviceMesh

    def __repr__(self) -> str:
        drafts = self.draft_layout is not None
        mesh, experts = self.layout.mesh.name, self.layout.expert_format
        return f"DeviceModel(mesh={mesh!r}, experts={str(experts)!r}, drafter={drafts})"

    @property
    def config(self) -> ModelConfig:
        """Of the target."""
        return self.layout.config

    @property
    def interpreted(self) -> bool:
        """Whether the kernels run in the interpreter, as everywhere but on TPU."""
        return bool(self.devices.devices.flat[0].platform != "tpu")

    @property
    def taps(self) -> tuple[int, ...]:
        """Streams that the drafter reads."""
        layout = self.draft_layout
        return () if layout is None else layout.config.aux_hidden_state_layer_ids

    @property
    def arrays(self) -> ModelWeights:
        """All weights."""
        return ModelWeights(self.target, self.drafter)

    def over_ranks(
        self, function: Callable[..., Any], state: Any, others: int, results: Any
    ) -> Callable[..., Any]:
        """Compiles a function of one rank's weights, state and more for all ranks.

        Args:
          function: of (weights, state, *others); every array of the first two is [1, ...] if split.
          state: partition specs of the state, which is donated.
          others: how many arguments follow, the same on all ranks.
          results: partition specs of what it returns.
        """
        mapped = jax.shard_map(
            function, mesh=self.devices, in_specs=(SPLIT, state, *[WHOLE] * others),
            out_specs=results, check_vma=False,
        )  # fmt: skip
        return jax.jit(mapped, donate_argnums=1)

    def place(self, value: Any) -> jax.Array:
        """Puts an array [ranks, ...] on the ranks' devices."""
        return jax.device_put(value, NamedSharding(self.devices, SPLIT))


def place_model(
    target: Checkpoint,
    drafter: DraftCheckpoint | None = None,
    *,
    ranks: int | None = None,
    experts: ExpertFormat = ExpertFormat.MXFP4,
    store: Path | None = None,
    report: Report | None = None,
) -> DeviceModel:
    """Loads a model onto devices.

    Args:
      drafter: made for the target, or None.
      ranks: devices to use; default all of a TPU slice, and one elsewhere.
      experts: format of the experts in memory.
      store: pre-sharded weights of this checkpoint for these ranks and this format; default reads
        the checkpoint's own files.
      report: called with bytes done and to do.

    Raises:
      KimiError: the model cannot be divided so, devices are missing, or a file is damaged.
    """
    if ranks is None:
        ranks = jax.device_count() if jax.devices()[0].platform == "tpu" else 1
    layout = Layout(target.config, default_mesh(target.config, ranks), experts)
    found = rank_devices(layout.mesh)
    if store is None:
        weights = load_checkpoint(target, layout, found, report=report)
    else:
        opened = Store(store)
        opened.require(Identity.of(target, layout).fields())
        weights = load_store(opened, found, report=report)
    devices = DeviceMesh(np.array(found), (AXIS,))
    if drafter is None:
        return DeviceModel(layout, weights, None, None, devices)
    drafter.config.check_target(target.config)
    draft_layout = DraftLayout(drafter.config, target.config, layout.mesh)
    arrays = _place_drafter(draft_layout, drafter, target, found, devices)
    return DeviceModel(layout, weights, draft_layout, arrays, devices)


def _place_drafter(
    layout: DraftLayout, drafter: DraftCheckpoint, target: Checkpoint,
    found: Sequence[jax.Device], devices: DeviceMesh,
) -> DraftWeights:  # fmt: skip
    """Rank by rank: a drafter is small beside its target."""
    parts: dict[str, list[jax.Array]] = {name: [] for name in DraftWeights._fields}
    for rank, device in enumerate(found):
        if device.process_index != jax.process_index():
            continue
        for name, value in layout.pack(drafter, rank, target)._asdict().items():
            parts[name].append(jax.device_put(value[None], device))
    sharding = NamedSharding(devices, SPLIT)
    return DraftWeights(**{
        name: jax.make_array_from_single_device_arrays(
            (layout.mesh.ranks, *layout.shapes[name]), sharding, own
        )
        for name, own in parts.items()
    })  # fmt: skip


def require_drafter(model: DeviceModel) -> DraftLayout:
    """The drafter's layout. Raises InputError if there is none."""
    if model.draft_layout is None:
        raise InputError("speculative decoding: expected a drafter, found none")
    return model.draft_layout
