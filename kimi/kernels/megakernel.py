"""The decode megakernel: one Pallas call that runs a step through all layers.

A second, tiny one keeps its new latents, see `commit`.

One token's path is told in `DESIGN.md`; `phases` is its schedule, `program` its code. Here is the
layer loop, and the call.
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

from kimi.kernels import commit
from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.collectives import AXIS, barrier
from kimi.kernels.context import Kernel, Layer
from kimi.kernels.errors import PlanError
from kimi.kernels.layer_table import Column, layer_table
from kimi.kernels.layout import LayerKind
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
    Weights,
    opened_shape,
    result_shapes,
    scratch_shapes,
    split_scratch,
    state_shapes,
)

Interpret = bool | pltpu.InterpretParams


MLA_PHASES = (mla.mla_down, mla.mla_gate, mla.mla_query, mla.mla_attend, mla.mla_out)
KDA_PHASES = (kda.kda_gates, kda.kda_in, kda.kda_decay, kda.kda_delta, kda.kda_out)


def phase(run: Callable[..., None], *arguments: object, name: str = "") -> None:
    """Runs a phase in a scope of its name: the compiled schedule is timed phase by phase."""
    with jax.named_scope(name or run.__name__):
        run(*arguments)


def attention(layer: Layer) -> None:
    """The first half of a layer."""
    assert layer.kind is not None
    for run in MLA_PHASES if layer.kind.mla else KDA_PHASES:
        phase(run, layer)


def feed_forward(layer: Layer) -> None:
    """The second half of a layer."""
    assert layer.kind is not None
    k = layer.kernel
    if layer.kind.moe:
        for run in (moe.route, moe.shared_in, moe.choose, moe.experts, moe.shared_out):
            phase(run, layer)
        phase(mixing.sum_and_send, k, "latent_scatter", "latent_gather", name="latent_sum")
        phase(moe.shared_sum, layer)
        phase(moe.latent_up, layer)
    else:
        phase(dense.dense_in, layer)
        phase(dense.dense_out, layer)
        phase(mixing.sum_and_send, k, "mlp_scatter", "layer_gather", name="dense_sum")


def run_layer(k: Kernel, index: Array, kinds: tuple[LayerKind, ...]) -> None:
    """A layer of one of `kinds`, which all have the same kind of feed-forward part."""
    any_kind = Layer(k, index, kinds[0])
    phase(mixing.tap, any_kind, any_kind[Column.TAP])
    phase(mixing.attention_mix, any_kind)
    for kind in kinds:
        layer = Layer(k, index, kind)
        if len(kinds) == 1:
            attention(layer)
        else:
            pl.when(layer[Column.MLA] == int(kind.mla))(partial(attention, layer))
    phase(mixing.mlp_bank, any_kind)
    phase(mixing.sum_and_send, k, "attention_scatter", "attention_gather", name="attention_sum")
    phase(mixing.attention_join, any_kind)
    phase(mixing.mlp_mix, any_kind)
    feed_forward(any_kind)
    phase(mixing.attention_bank, any_kind, Layer(k, index + 1, None))
    phase(mixing.layer_join, any_kind)


def _body(k: Kernel, kinds: tuple[LayerKind, ...], index: Array, _: None) -> None:
    run_layer(k, index, kinds)


def run(k: Kernel, with_barrier: bool) -> None:
    """The whole step."""
    layout, count = k.plan.layout, k.config.num_hidden_layers
    if with_barrier and k.mesh.ranks > 1:
        phase(barrier, k)
    phase(frame.begin, k)
    phase(frame.embed, k)
    phase(frame.embedded, k, Layer(k, 0, None))
    dense_layers = min(k.config.first_k_dense_replace, count)
    for first, stop in ((0, dense_layers), (dense_layers, count)):
        kinds = tuple(dict.fromkeys(layout.kind(i) for i in range(first, stop)))
        if kinds:
            lax.fori_loop(first, stop, partial(_body, k, kinds), None)
    last = Layer(k, count, None)
    if count in k.plan.settings.taps:
        phase(mixing.tap, last, k.plan.settings.taps.index(count) + 1)
    phase(mixing.output_mix, last)
    phase(frame.head, k)
    phase(frame.token, k)


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
    names = ("dense", "vectors", "experts", "embedding")
    table = layer_table(plan)

    def body(*refs: Ref) -> None:
        inputs = dict(zip(INPUTS, refs, strict=False))
        kda_ref, opened_ref, *results = refs[len(INPUTS) : len(INPUTS) + len(OUTPUTS)]
        ws, sems = split_scratch(plan, refs[len(INPUTS) + len(OUTPUTS) :])
        rank = lax.axis_index(AXIS) if plan.layout.mesh.ranks > 1 else 0
        run(
            Kernel(
                plan, Weights(*(inputs[n] for n in names)),
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
