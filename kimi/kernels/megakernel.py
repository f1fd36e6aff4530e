"""The decode megakernel: one Pallas call that runs a step through all layers.

A second, tiny one keeps its new latents, see `cache_append`.

One token's path is told in `DESIGN.md`; `phases` has its order and schedule, `program` its code.
Here is the layer loop, and the call.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax
from jax.experimental import pallas as pl

from kimi.kernels import cache_append, phases
from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.collectives import barrier
from kimi.kernels.context import Kernel, Layer, code_by_name, run_phases
from kimi.kernels.errors import PlanError
from kimi.kernels.launch import Interpret, kernel_call
from kimi.kernels.layer_table import Column, layer_table
from kimi.kernels.layout import LayerKind
from kimi.kernels.plan import Plan
from kimi.kernels.program import frame, kda, mixing, mla, moe
from kimi.kernels.refs import INPUTS, StepInput, result_shapes

COLLECTIVE_ID = 0

# The code of every phase, under the name by which `phases` orders it.
CODE = code_by_name(
    frame.begin, frame.embed, frame.embedded,
    mixing.tap, mixing.attention_res,
    kda.kda_gates, kda.kda_in, kda.kda_decay, kda.kda_delta, kda.kda_out,
    mla.mla_down, mla.mla_gate, mla.mla_query, mla.mla_attend, mla.mla_out,
    mixing.mlp_residuals, mixing.attention_sum, mixing.attention_join, mixing.mlp_res,
    moe.route, moe.shared_in, moe.choose, moe.experts, moe.shared_out, moe.latent_sum,
    moe.shared_sum, moe.latent_up,
    moe.dense_in, moe.dense_out, moe.dense_sum,
    mixing.attention_residuals, mixing.layer_join,
    mixing.output_tap, mixing.output_res, frame.head, frame.token,
)  # fmt: skip


def run_layer(k: Kernel, index: Array, kinds: tuple[LayerKind, ...]) -> None:
    """A layer of one of `kinds`, which all have the same kind of feed-forward part."""
    any_kind = Layer(k, index, kinds[0])
    run_phases(CODE, phases.MIX, k, any_kind)
    for kind in kinds:
        run_attention = partial(run_phases, CODE, phases.attention(kind), k, Layer(k, index, kind))
        if len(kinds) == 1:
            run_attention()
        else:
            pl.when(any_kind[Column.MLA] == int(kind.mla))(run_attention)
    run_phases(CODE, phases.JOIN, k, any_kind)
    run_phases(CODE, phases.feed_forward(kinds[0]), k, any_kind)
    run_phases(CODE, phases.END, k, any_kind)


def run(k: Kernel, with_barrier: bool) -> None:
    """The whole step."""
    layout, count = k.plan.layout, k.config.num_hidden_layers
    if with_barrier:
        with jax.named_scope("barrier"):
            barrier(k)
    run_phases(CODE, phases.PROLOGUE, k, Layer(k, 0, None))
    dense_layers = min(k.config.first_k_dense_replace, count)
    for first, stop in ((0, dense_layers), (dense_layers, count)):
        kinds = tuple(dict.fromkeys(layout.kind(i) for i in range(first, stop)))
        if kinds:
            lax.fori_loop(first, stop, lambda i, _, kinds=kinds: run_layer(k, i, kinds), None)
    last = Layer(k, count, None)
    run_phases(CODE, phases.epilogue(k.plan.settings.taps, count), k, last)


def check(plan: Plan) -> None:
    """Raises PlanError for a model that this kernel cannot run."""
    c = plan.layout.config
    for name, value, multiple in (
        ("hidden_size", c.hidden_size, LANES),
        ("kv_lora_rank", c.kv_lora_rank, LANES),
        ("vocab_size", c.vocab_size, SUBLANES),
        ("KDA channels of a rank", plan.record.channels, LANES),
    ):
        if value % multiple:
            raise PlanError(f"megakernel: {name}: expected a multiple of {multiple}, found {value}")
    if not (c.kda_layers and c.mla_layers):
        raise PlanError(
            f"megakernel: layers: expected KDA and MLA layers, found {len(c.kda_layers)} and "
            f"{len(c.mla_layers)}"
        )
    if plan.settings.cache_positions & (plan.settings.cache_positions - 1):
        raise PlanError(
            f"megakernel: cache_positions: expected a power of two, found "
            f"{plan.settings.cache_positions}"
        )


def build(plan: Plan, interpret: Interpret = False) -> Callable[..., tuple[Array, ...]]:
    """The kernel as a function of one rank's arrays, to be called inside `shard_map` over `AXIS`.

    Args:
      plan: of the step.
      interpret: False on TPU; True or `pltpu.InterpretParams` run it without one.

    Returns: a function of `refs.INPUTS` without the table, giving `kda` and `cache`, updated in
      place, and the `refs.Results`.

    Raises:
      PlanError: see `check`.
    """
    check(plan)
    table, keep = layer_table(plan), cache_append.build(plan, interpret)
    call = kernel_call(
        "decode", Kernel, run, plan, INPUTS, result_shapes(plan), COLLECTIVE_ID, interpret
    )

    def step(numbers: Array, *arrays: Array) -> tuple[Array, ...]:
        kda, appended, *results = call(jnp.asarray(table), numbers, *arrays)
        return (kda, keep(numbers, appended, arrays[-1]), *results)

    return step


def step_input(
    tokens: Sequence[int], lengths: Sequence[int], num_accepted: int, num_valid: int
) -> npt.NDArray[np.int32]:
    """The numbers of a step, see `StepInput`."""
    numbers = np.zeros(StepInput.SIZE, np.int32)
    numbers[: len(tokens)] = tokens
    numbers[SUBLANES : SUBLANES + len(lengths)] = lengths
    numbers[2 * SUBLANES :] = num_accepted, num_valid
    return numbers
