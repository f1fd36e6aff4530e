"""What the decode kernel finds in scalar memory during a step: the simulator cannot compute it.

The layer table and the step's numbers are as in a real step. Which experts the router chooses
depends on weights: here routes are drawn, uniform and independent, and the simulated core is in the
group of ranks that has most experts, for which all ranks wait. From many draws the layers get those
that stand for equal shares of them, so that a step is an average one.
"""

import numpy as np
import numpy.typing as npt

from kimi.config import ModelConfig
from kimi.errors import InputError
from kimi.kernels.layer_table import layer_table
from kimi.kernels.megakernel import step_input
from kimi.kernels.mesh import Mesh
from kimi.kernels.plan import Plan
from kimi.kernels.refs import INPUTS
from kimi.kernels.routing import ListRow
from kimi.lab.predict.dump import SCRATCH
from kimi.lab.predict.launch import Kernel
from kimi.lab.predict.machine import KernelInputs
from kimi.lab.predict.simulate import partition_words

_DRAWS, _SEED = 4000, 0

Bits = npt.NDArray[np.bool_]


def kernel_inputs(
    plan: Plan, kernel: Kernel, context: int, live: int | None = None
) -> KernelInputs:
    """The scalars of one step of a compiled kernel.

    Args:
      context: tokens of each sequence before the step.
      live: rows of a block that are verified; default all.
    Raises:
      InputError: see `list_buffer`.
    """
    rows = plan.rows
    live = rows.count if live is None else live
    step = step_input([0] * rows.count, [context] * rows.sequences, rows.block, live)
    numbers = {"table": layer_table(plan), "step": step}
    return KernelInputs(
        operands={INPUTS.index(name): words.tolist() for name, words in numbers.items()},
        fills={list_buffer(kernel): expert_lists(plan, live)},
        words=partition_words(kernel.allocations, 0),
    )


def commit_inputs(plan: Plan, context: int) -> KernelInputs:
    """The scalars of `cache_append` behind such a step."""
    step = step_input([], [context] * plan.rows.sequences, 0, 0)
    return KernelInputs(operands={0: step.tolist()})


def list_buffer(kernel: Kernel) -> str:
    """The buffer of a kernel that holds its list of experts: the only one in SMEM.

    Raises:
      InputError: there are several, or none.
    """
    found = [a for a in kernel.allocations if a.space == "smem" and a.tag == SCRATCH]
    if len(found) != 1:
        raise InputError(
            f"kernel {kernel.name}: expected one SMEM buffer, for the list of experts, found "
            f"{', '.join(a.shape for a in found) or 'none'}"
        )
    return found[0].name


def expert_lists(plan: Plan, live: int) -> list[list[int]]:
    """The expert list of every MoE layer as SMEM words for `live` rows, see `routing.ListRow`."""
    config, mesh = plan.layout.config, plan.layout.mesh
    width = next(b.shape[1] for b in plan.buffers if b.name == "expert_list")
    routes = fullest_groups(config, mesh, live, len(plan.layout.moe_layers))
    return [_words(chosen, ids, width) for chosen, ids in routes]


def fullest_groups(
    config: ModelConfig, mesh: Mesh, rows: int, count: int
) -> list[tuple[Bits, npt.NDArray[np.int64]]]:
    """Drawn routes of `count` layers: those of the expert group that has most experts.

    Returns: for each layer which row chose what, [rows, experts of the list], and their ids.
    """
    rng = np.random.default_rng(_SEED)
    owner = mesh.owner(np.arange(config.num_experts))
    drawn = []
    for _ in range(_DRAWS):
        keys = rng.random((rows, config.num_experts))
        ids = np.argpartition(keys, -config.num_experts_per_token, 1)
        chosen = np.zeros(keys.shape, bool)
        np.put_along_axis(chosen, ids[:, -config.num_experts_per_token :], True, 1)
        used = chosen.any(0)
        group = np.bincount(owner[used], minlength=mesh.expert_parallel).argmax()
        own = np.flatnonzero(used & (owner == group))
        drawn.append((chosen[:, own], own))
    drawn.sort(key=lambda route: route[1].size)
    shares = [drawn[int((i + 0.5) * _DRAWS / count)] for i in range(count)]
    return [shares[i] for i in rng.permutation(count)]


def _words(chosen: Bits, ids: npt.NDArray[np.int64], width: int) -> list[int]:
    values = np.zeros((ListRow.SIZE, width), np.float32)
    rows, experts = chosen.shape
    values[:rows, :experts] = chosen
    values[ListRow.EXPERT, :experts] = ids
    values[ListRow.ROWS, :experts] = (chosen << np.arange(rows)[:, None]).sum(0)
    values[ListRow.EXPERTS] = experts
    values[ListRow.PAIRS] = (-(-chosen.sum(0) // 2)).sum()
    return [int(word) for word in values.view(np.uint32).ravel()]
