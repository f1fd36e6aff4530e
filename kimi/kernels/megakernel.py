"""The decode megakernel: one Pallas call that runs a step through all layers.

A second, tiny one keeps its new latents, see `commit`.

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
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels import commit, phases
from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.collectives import AXIS, barrier
from kimi.kernels.context import Kernel, Layer, code_by_name, run_phases
from kimi.kernels.errors import PlanError
from kimi.kernels.layer_table import Column, layer_table
from kimi.kernels.layout import LayerKind, Weights
from kimi.kernels.plan import Plan
from kimi.kernels.program import dense, frame, kda, mixing, mla, moe
from kimi.kernels.refs import (
    INPUTS,
    OUTPUTS,
    LayerTable,
    Ref,
    Results,
    State,
    StepInput,
    opened_shape,
    result_shapes,
    scratch_shapes,
    split_scratch,
    state_shapes,
)

Interpret = bool | pltpu.InterpretParams


# The code of every phase, under the name by which `phases` orders it.
CODE = code_by_name(
    frame.begin, frame.embed, frame.embedded,
    mixing.tap, mixing.attention_mix,
    kda.kda_gates, kda.kda_in, kda.kda_decay, kda.kda_delta, kda.kda_out,
    mla.mla_down, mla.mla_gate, mla.mla_query, mla.mla_attend, mla.mla_out,
    mixing.mlp_bank, mixing.attention_sum, mixing.attention_join, mixing.mlp_mix,
    moe.route, moe.shared_in, moe.choose, moe.experts, moe.shared_out, moe.latent_sum,
    moe.shared_sum, moe.latent_up,
    dense.dense_in, dense.dense_out, dense.dense_sum,
    mixing.attention_bank, mixing.layer_join,
    mixing.output_tap, mixing.output_mix, frame.head, frame.token,
)  # fmt: skip


def run_layer(k: Kernel, index: Array, kinds: tuple[LayerKind, ...]) -> None:
    """A layer of one of `kinds`, which all have the same kind of feed-forward part."""
    any_kind = Layer(k, index, kinds[0])
    run_phases(CODE, phases.MIX, any_kind)
    for kind in kinds:
        run_attention = partial(run_phases, CODE, phases.attention(kind), Layer(k, index, kind))
        if len(kinds) == 1:
            run_attention()
        else:
            pl.when(any_kind[Column.MLA] == int(kind.mla))(run_attention)
    run_phases(CODE, phases.JOIN, any_kind)
    run_phases(CODE, phases.feed_forward(kinds[0]), any_kind)
    run_phases(CODE, phases.END, any_kind)


def _body(k: Kernel, kinds: tuple[LayerKind, ...], index: Array, _: None) -> None:
    run_layer(k, index, kinds)


def run(k: Kernel, with_barrier: bool) -> None:
    """The whole step."""
    layout, count = k.plan.layout, k.config.num_hidden_layers
    if with_barrier and k.mesh.ranks > 1:
        with jax.named_scope("barrier"):
            barrier(k)
    run_phases(CODE, phases.PROLOGUE, Layer(k, 0, None))
    dense_layers = min(k.config.first_k_dense_replace, count)
    for first, stop in ((0, dense_layers), (dense_layers, count)):
        kinds = tuple(dict.fromkeys(layout.kind(i) for i in range(first, stop)))
        if kinds:
            lax.fori_loop(first, stop, partial(_body, k, kinds), None)
    run_phases(CODE, phases.epilogue(k.plan.settings.taps, count), Layer(k, count, None))


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
    table = layer_table(plan)

    def body(*refs: Ref) -> None:
        inputs = dict(zip(INPUTS, refs, strict=False))
        kda_ref, opened_ref, *results = refs[len(INPUTS) : len(INPUTS) + len(OUTPUTS)]
        ws, sems = split_scratch(plan, refs[len(INPUTS) + len(OUTPUTS) :])
        rank = lax.axis_index(AXIS) if plan.layout.mesh.ranks > 1 else 0
        run(
            Kernel(
                plan, Weights(*(inputs[name] for name in Weights._fields)),
                State(kda_ref, inputs["cache"], opened_ref),
                StepInput(inputs["step"]), LayerTable(inputs["table"]), Results(*results),
                ws, sems, rank,
            ),
            with_barrier=interpret is not True,
        )  # fmt: skip

    smem, hbm = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)
    vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
    records = jax.ShapeDtypeStruct(*state_shapes(plan)["kda"])
    call = pl.pallas_call(
        body,
        name="decode",
        out_shape=[records, opened_shape(plan), *result_shapes(plan)],
        in_specs=[smem, smem, *[hbm] * (len(INPUTS) - 2)],
        out_specs=[hbm, hbm, *[vmem] * (len(OUTPUTS) - 2)],
        scratch_shapes=scratch_shapes(plan),
        input_output_aliases={INPUTS.index("kda"): OUTPUTS.index("kda")},
        interpret=interpret,
        compiler_params=pltpu.CompilerParams(
            collective_id=0 if plan.layout.mesh.ranks > 1 else None,
            vmem_limit_bytes=plan.chip.vmem_bytes,
            has_side_effects=True,
        ),
    )

    keep = commit.build(plan, interpret)

    def step(numbers: Array, *arrays: Array) -> tuple[Array, ...]:
        kda, opened, *results = call(jnp.asarray(table), numbers, *arrays)
        return (kda, keep(numbers, opened, arrays[-1]), *results)

    return step


def step_input(
    tokens: Sequence[int], lengths: Sequence[int], kept: int, live: int
) -> npt.NDArray[np.int32]:
    """The numbers of a step, see `StepInput`."""
    numbers = np.zeros(StepInput.SIZE, np.int32)
    numbers[: len(tokens)] = tokens
    numbers[SUBLANES : SUBLANES + len(lengths)] = lengths
    numbers[2 * SUBLANES :] = kept, live
    return numbers
