"""Writes the latents of a step's rows into the MLA cache: a Pallas call of its own.

Why not the megakernel: XLA wants what a kernel with remote copies writes at the same address on all
devices. It cannot place parameters and results of a program so, and copies them when the program
begins and ends. A long cache is the largest thing there is beside the weights (3.6 GB a core for
131,072 tokens); so the kernel with the remote copies only reads it, and this one has none.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.launch import Interpret
from kimi.kernels.plan import Plan
from kimi.kernels.refs import Copy, Ref, Scalar, StepInput, state_shapes
from kimi.kernels.streaming import open_blocks


def build(plan: Plan, interpret: Interpret = False) -> Callable[[Array, Array, Array], Array]:
    """The kernel, for one rank.

    Args:
      plan: of the step.
      interpret: False on TPU; True or `pltpu.InterpretParams` run it without one.

    Returns: a function of `StepInput` [18] int32, `appended` and `cache` (see `refs`), giving the
      cache, updated in place.
    """
    shape, dtype = state_shapes(plan)["cache"]
    layers, sequences = shape[0], range(plan.rows.sequences)

    def body(step: Ref, appended: Ref, _: Ref, cache: Ref, done: Ref) -> None:
        def copies(state: Scalar) -> list[Copy]:
            targets = (open_blocks(plan, cache, StepInput(step), state, s) for s in sequences)
            return [
                pltpu.make_async_copy(appended.at[state, s], target, done)
                for s, target in enumerate(targets)
            ]

        def start(state: Scalar, nothing: None) -> None:
            for copy in copies(state):
                copy.start()

        def wait(state: Scalar, nothing: None) -> None:
            for copy in copies(state):
                copy.wait()

        lax.fori_loop(0, layers, start, None)
        lax.fori_loop(0, layers, wait, None)

    hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        body,
        name="cache_append",
        out_shape=jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), hbm, hbm],
        out_specs=hbm,
        scratch_shapes=[pltpu.SemaphoreType.DMA],
        input_output_aliases={2: 0},
        interpret=interpret,
    )
