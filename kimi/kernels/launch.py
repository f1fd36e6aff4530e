"""The Pallas call of a kernel that collectives messages with its peers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.collectives import AXIS
from kimi.kernels.context import Core
from kimi.kernels.kernel_plan import KernelPlan
from kimi.kernels.refs import Ref, Semaphores, Workspace, scratch_shapes

Interpret = bool | pltpu.InterpretParams

# Operands that are not in HBM, and results that are.
_SPACES = {"table": pltpu.SMEM, "step": pltpu.SMEM, "frequencies": pltpu.VMEM}
_STATES = ("kda", "appended", "cache")


def kernel_call[K: Core](
    name: str,
    kernel: Callable[..., K],
    run: Callable[[K, bool], None],
    plan: KernelPlan,
    inputs: Sequence[str],
    results: Mapping[str, jax.ShapeDtypeStruct],
    collective_id: int,
    interpret: Interpret,
) -> Callable[..., Any]:
    """A kernel as a function of one rank's arrays.

    Args:
      kernel: makes the running kernel, see `Core`.
      run: its program, told whether to begin with a barrier.
      inputs: names of the operands; one that is also a result is updated in place.
      results: shapes by name.
      collective_id: of the barrier, one for each kernel of a program.
      interpret: False on TPU; True or `pltpu.InterpretParams` run it without one.
    """
    ranks, storages = plan.layout.mesh.ranks, len(plan.storages)
    operands = (*inputs, *results)

    def body(*refs: Ref) -> None:
        scratch = refs[len(operands) :]
        ws, sems = Workspace(plan, scratch[:storages]), Semaphores(plan, scratch[storages:])
        rank = lax.axis_index(AXIS) if ranks > 1 else 0
        named = dict(zip(operands, refs, strict=False))
        run(kernel(plan, named, ws, sems, rank), ranks > 1 and interpret is not True)

    return pl.pallas_call(
        body,
        name=name,
        out_shape=list(results.values()),
        in_specs=[pl.BlockSpec(memory_space=_SPACES.get(i, pl.ANY)) for i in inputs],
        out_specs=[
            pl.BlockSpec(memory_space=pl.ANY if r in _STATES else pltpu.VMEM) for r in results
        ],
        scratch_shapes=scratch_shapes(plan),
        input_output_aliases={
            i: list(results).index(operand)
            for i, operand in enumerate(inputs)
            if operand in results
        },
        interpret=interpret,
        compiler_params=pltpu.CompilerParams(
            collective_id=collective_id if ranks > 1 else None,
            vmem_limit_bytes=plan.chip.vmem_bytes,
            has_side_effects=True,
        ),
    )
