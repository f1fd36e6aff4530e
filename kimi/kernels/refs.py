"""The references of the kernel, by the names of the plan's tables.

The order in which Pallas hands them over is settled here and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.buffers import Space
from kimi.kernels.chip import LANES, SUBLANES, round_up
from kimi.kernels.kernel_plan import KernelPlan
from kimi.kernels.layout import Layout
from kimi.kernels.plan import Plan
from kimi.kernels.schedule import Transfer

# References, semaphores and copies have no public type.
Ref = Any
Copy = Any
Scalar = jax.Array | int

# Transfers with a semaphore for every slot.
SLOTTED = ("tiles", "cache_load", "expert_load")
# Operands: in SMEM `layer_table` and the numbers of a step, see `StepInput`; in HBM, see `Weights`:
#   dense, vectors, experts, embedding
#   kda        f32 [KDA layers, rows, 128], see `records.KdaRecord`; updated in place
#   cache      u32 [MLA layers, sequences, blocks, words, 128], see `records.LatentCache`; only read
INPUTS = ("table", "step", "dense", "vectors", "experts", "embedding", "kda", "cache")
# Results:
#   kda        as above, in HBM
#   appended   u32 [MLA layers, sequences, open blocks, words, 128], in HBM: the blocks of the cache
#              that the step's rows were written into, for `cache_append`
#   tokens     int32 [8, 128], the greedy choice of every row, lane-replicated
#   best       float32 [8, 128], its logit; minus infinity if the row is NaN
#   logits     float32 [8, vocabulary of the rank up to 128]; columns behind it mean nothing
#   taps       float32 [taps, 8, D], the streams that the drafter reads, in the order of the
#              settings; one entry, which means nothing, if there are none
OUTPUTS = ("kda", "appended", "tokens", "best", "logits", "taps")


@dataclass(frozen=True)
class StepInput:
    """Numbers of one step, int32 in SMEM: tokens, lengths, num_accepted, num_valid."""

    ref: Ref

    SIZE = 2 * SUBLANES + 2

    def token(self, row: int) -> jax.Array:
        """The token of a row."""
        return self.ref[row]

    def length(self, sequence: int) -> jax.Array:
        """Tokens of a sequence before this step."""
        return self.ref[SUBLANES + sequence]

    @property
    def num_accepted(self) -> jax.Array:
        """Rows of the step before that count; 0 before the first block."""
        return self.ref[2 * SUBLANES]

    @property
    def num_valid(self) -> jax.Array:
        """Rows of this step that count, the first ones."""
        return self.ref[2 * SUBLANES + 1]


class Workspace:
    """The buffers of the plan, each as a reference of its own shape."""

    def __init__(self, plan: KernelPlan, refs: Sequence[Ref]):
        storages = {
            name: (s, ref) for s, ref in zip(plan.storages, refs, strict=True) for name in s.buffers
        }
        self._refs: dict[str, Ref] = {}
        for buffer in plan.buffers:
            storage, ref = storages[buffer.name]
            if storage.shape != buffer.shape:
                ref = ref.at[tuple(slice(0, size) for size in buffer.shape)]
            self._refs[buffer.name] = ref

    def __getitem__(self, name: str) -> Ref:
        return self._refs[name]


class Semaphores:
    """The semaphores of the plan's transfers: one, one a slot, or a pair if remote."""

    def __init__(self, plan: KernelPlan, refs: Sequence[Ref]):
        left = iter(refs)
        self._refs = {t.name: tuple(next(left) for _ in _shapes(t)) for t in plan.transfers}

    def local(self, name: str) -> Ref:
        """Of a load or store; an array if it has slots."""
        return self._refs[name][0]

    def remote(self, name: str) -> tuple[Ref, Ref]:
        """Of a collective: sent, received."""
        sent, received = self._refs[name]
        return sent, received


def _shapes(transfer: Transfer) -> list[Any]:
    if transfer.kind.remote:
        return [pltpu.SemaphoreType.DMA] * 2
    return [pltpu.SemaphoreType.DMA((transfer.slots,) if transfer.name in SLOTTED else ())]


def scratch_shapes(plan: KernelPlan) -> list[Any]:
    """For `pallas_call`: the storages, then the semaphores."""
    spaces = {Space.VMEM: pltpu.VMEM, Space.SMEM: pltpu.SMEM}
    storages = [spaces[s.space](s.shape, s.dtype) for s in plan.storages]
    return [*storages, *(shape for t in plan.transfers for shape in _shapes(t))]


def state_shapes(plan: Plan) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shapes and dtypes of what a step gets of `State` on one rank."""
    config = plan.layout.config
    kda = (len(config.kda_layers), plan.record.total, LANES)
    latents = (len(config.mla_layers), *plan.cache.shape)
    return {"kda": (kda, np.float32), "cache": (latents, np.uint32)}


def weight_shapes(layout: Layout) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shapes and dtypes of `Weights` on one rank."""
    kinds = {"vectors": np.float32}
    return {name: (shape, kinds.get(name, np.uint32)) for name, shape in layout.shapes.items()}


def result_shapes(plan: Plan) -> dict[str, jax.ShapeDtypeStruct]:
    """Of `OUTPUTS` on one rank."""
    config, mesh, shape = plan.layout.config, plan.layout.mesh, jax.ShapeDtypeStruct
    layers, taps = len(config.mla_layers), max(1, len(plan.settings.taps))
    appended = (layers, plan.rows.sequences, plan.cache.open_blocks, plan.cache.words, LANES)
    return {
        "kda": shape(*state_shapes(plan)["kda"]),
        "appended": shape(appended, jnp.uint32),
        "tokens": shape((SUBLANES, LANES), jnp.int32),
        "best": shape((SUBLANES, LANES), jnp.float32),
        "logits": shape((SUBLANES, round_up(mesh.local(config.vocab_size), LANES)), jnp.float32),
        "taps": shape((taps, SUBLANES, config.hidden_size), jnp.float32),
    }
