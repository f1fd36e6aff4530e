"""A model on devices: which ranks there are, and the weights of target and drafter on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding, PartitionSpec

from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.config import ModelConfig
from kimi.errors import InputError
from kimi.kernels.collectives import AXIS
from kimi.kernels.draft.layout import DraftLayout
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import default_mesh
from kimi.loading.load import load_checkpoint, load_store
from kimi.loading.manifest import Identity
from kimi.loading.placement import Weights, rank_devices
from kimi.loading.store import Store

SPLIT, WHOLE = PartitionSpec(AXIS), PartitionSpec()
DRAFT_ARRAYS = ("dense", "vectors", "embedding", "markov_in", "markov_out")
Report = Callable[[int, int], None]


@dataclass(frozen=True)
class DeviceModel:
    """A placed model. All arrays have a first axis of ranks.

    Attributes:
      layout: of the target; `layout.mesh` are the ranks.
      target: its weights.
      draft_layout, drafter: of the drafter, in the order of the draft kernel's arguments; or None
        and ().
      devices: of the ranks, along the axis "ranks".
    """

    layout: Layout
    target: Weights
    draft_layout: DraftLayout | None
    drafter: tuple[jax.Array, ...]
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
    def arrays(self) -> tuple[jax.Array, ...]:
        """All weights, as the compiled programs take them: the target's, then the drafter's."""
        t = self.target
        return (t.dense, t.vectors, t.experts, t.embedding, *self.drafter)

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
        weights = tuple(SPLIT for _ in self.arrays)
        mapped = jax.shard_map(
            function, mesh=self.devices, in_specs=(weights, state, *[WHOLE] * others),
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
        return DeviceModel(layout, weights, None, (), devices)
    drafter.config.check_target(target.config)
    draft_layout = DraftLayout(drafter.config, target.config, layout.mesh)
    arrays = _place_drafter(draft_layout, drafter, target, found, devices)
    return DeviceModel(layout, weights, draft_layout, arrays, devices)


def _place_drafter(
    layout: DraftLayout, drafter: DraftCheckpoint, target: Checkpoint,
    found: Sequence[jax.Device], devices: DeviceMesh,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """Rank by rank: a drafter is small beside its target."""
    parts: dict[str, list[jax.Array]] = {name: [] for name in DRAFT_ARRAYS}
    for rank, device in enumerate(found):
        if device.process_index != jax.process_index():
            continue
        packed = layout.pack(drafter, rank, target)
        for name in DRAFT_ARRAYS:
            parts[name].append(jax.device_put(getattr(packed, name)[None], device))
    sharding = NamedSharding(devices, SPLIT)
    return tuple(
        jax.make_array_from_single_device_arrays(
            (layout.mesh.ranks, *layout.shapes[name]), sharding, parts[name]
        )
        for name in DRAFT_ARRAYS
    )


def require_drafter(model: DeviceModel) -> DraftLayout:
    """The drafter's layout. Raises InputError if there is none."""
    if model.draft_layout is None:
        raise InputError("speculative decoding: expected a drafter, found none")
    return model.draft_layout
