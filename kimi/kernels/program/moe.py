"""The mixture of experts: routing, routed experts in the latent space, shared experts."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.collectives import gather, gathered, scatter, summed, wait
from kimi.kernels.context import Kernel, Layer, left_operand, rows_to_tile
from kimi.kernels.experts import CodedMatrix
from kimi.kernels.layer_table import Column
from kimi.kernels.ops import experts as ops
from kimi.kernels.ops import router
from kimi.kernels.ops.lanes import F32, I32, iota, pad_lanes
from kimi.kernels.program.dense import betas, down, gate_and_up
from kimi.kernels.refs import Copy, Scalar
from kimi.kernels.streaming import product


def route(layer: Layer) -> None:
    """This rank's columns of the latent and of the router's scores."""
    k = layer.kernel
    gather(k, "route_gather", product(k, layer.feed_forward, "route", k.ws["normed"]))


def shared_in(layer: Layer) -> None:
    """Gate and up of the shared experts."""
    k = layer.kernel
    gate_and_up(layer, "shared_in", k.mesh.local(k.config.shared_intermediate_size))


def choose(layer: Layer) -> None:
    """Exact choice of the experts by all ranks alike; requests those of the own group."""
    k, c, ws = layer.kernel, layer.kernel.config, layer.kernel.ws
    wait(k, "route_gather")
    latent, logits = gathered(
        k, "route_gather",
        k.mesh.local(c.routed_expert_hidden_size), k.mesh.local(c.num_experts),
    )  # fmt: skip
    scores = jax.nn.sigmoid(rows_to_tile(logits))
    biased = scores + layer.row("route_bias")
    found = router.route_rows(biased, scores, c.num_experts_per_token, c.routed_scaling_factor)
    group = k.mesh.expert_group(k.rank)
    own = k.mesh.owner(iota(scores.shape, 1)) == group
    listed = router.union(found, k.step.live, own, k.plan.expert_list_slots)
    ws["expert_weights"][...] = listed.weights
    ws["choice"][...] = _on_lanes(k, listed)
    pltpu.sync_copy(ws["choice"], ws["expert_list"])
    _start_experts(layer)
    width = k.plan.layout.expert_block.gate_up.padded_inputs
    spread = ops.spread_groups(pad_lanes(latent, width, 0.0))
    missing = ws["spread"].shape[0] - spread.shape[0]
    if missing:
        spread = jnp.concatenate([spread, jnp.zeros((missing, width), spread.dtype)], 0)
    ws["spread"][:, :width] = spread


def _on_lanes(k: Kernel, listed: router.ExpertList) -> Array:
    """Row 0: the experts' ids along lanes; row 1: how many there are. int32 [8, lanes]."""
    slots, shape = listed.ids.shape[0], k.ws["choice"].shape
    panels = []
    for lane in range(0, shape[1], LANES):
        count = min(LANES, slots - lane)
        ids = listed.ids[lane : lane + count].astype(F32)  # exact: ids are small
        diagonal = iota(ids.shape, 0) == iota(ids.shape, 1)
        panels.append(jnp.sum(jnp.where(diagonal, ids, 0.0), 0, keepdims=True))
    row = panels[0] if len(panels) == 1 else jnp.concatenate(panels, 1)
    lives = jnp.concatenate([listed.live] * (shape[1] // LANES), 1)
    return jnp.where(iota(shape, 0) == 0, row.astype(I32), lives)


def _expert_copy(layer: Layer, index: Scalar, slot: Scalar) -> Copy:
    """Entry `index` of the list into a slot."""
    k = layer.kernel
    expert = k.mesh.local_expert(k.ws["expert_list"][0, index])
    source = k.weights.experts.at[layer[Column.EXPERT] + expert]
    sem = k.sems.local("expert_load")
    return pltpu.make_async_copy(source, k.ws["experts"].at[slot], sem.at[slot])


def _count(k: Kernel) -> Array:
    """Experts that this rank runs."""
    return k.ws["expert_list"][1, 0]


def _start_experts(layer: Layer) -> None:
    k = layer.kernel

    def start(index: Array, _: None) -> None:
        _expert_copy(layer, index, index).start()

    lax.fori_loop(0, jnp.minimum(_count(k), k.plan.settings.expert_slots), start, None)


def experts(layer: Layer) -> None:
    """The experts one after the other, as they come; partial sums over width and groups."""
    k, ws, slots = layer.kernel, layer.kernel.ws, layer.kernel.plan.settings.expert_slots
    ws["expert_sum"][...] = jnp.zeros(ws["expert_sum"].shape, F32)
    count = _count(k)

    def run(index: Array, slot: Array) -> Array:
        _expert_copy(layer, 0, slot).wait()
        _run_expert(k, index, slot)

        @pl.when(index + slots < count)
        def _() -> None:
            _expert_copy(layer, index + slots, slot).start()

        return jnp.where(slot + 1 == slots, 0, slot + 1)

    lax.fori_loop(0, count, run, jnp.int32(0))
    width = k.config.routed_expert_hidden_size
    scatter(k, "latent_scatter", ops.fold_groups(ws["expert_sum"][:, :width]))


def _run_expert(k: Kernel, index: Scalar, slot: Scalar) -> None:
    """Adds one expert's weighted output, scale groups apart, to the sum."""
    block, ws = k.plan.layout.expert_block, k.ws
    spread = ws["spread"][: SUBLANES * k.row_tile, : block.gate_up.padded_inputs]
    hidden = ops.mxfp4_gate_up(spread, [_coded(k, block.gate_up, slot)], block.width, betas(k))
    weights = ws["expert_weights"][pl.ds(index, 1), :]
    of_row = [weights[:, row : row + 1] for row in range(k.row_tile)]
    out = ops.mxfp4_down(hidden, [_coded(k, block.down, slot)], [of_row])
    ws["expert_sum"][...] = ws["expert_sum"][...] + out


def _coded(k: Kernel, form: CodedMatrix, slot: Scalar) -> ops.Coded:
    """A matrix of the expert in a slot."""
    experts = k.ws["experts"]
    words = experts[slot, form.row : form.scale_row, :]
    shape = (form.panels, form.panel_rows, LANES)
    return ops.Coded(words.reshape(shape), experts[slot, form.scale_row : form.stop, :])


def shared_out(layer: Layer) -> None:
    """Down of the shared experts."""
    down(layer, "shared_out")


def shared_sum(layer: Layer) -> None:
    """This rank's columns of the shared experts' output."""
    k = layer.kernel
    wait(k, "mlp_scatter")
    k.ws["shared"][...] = rows_to_tile(summed(k, "mlp_scatter"))


def latent_up(layer: Layer) -> None:
    """Norm, up-projection, and the shared experts: finished columns of the stream."""
    k, c = layer.kernel, layer.kernel.config
    wait(k, "latent_gather")
    (latent,) = gathered(k, "latent_gather")
    square = jnp.mean(latent * latent, -1, keepdims=True)
    normed = latent * lax.rsqrt(square + c.rms_norm_eps) * layer.row("expert_norm")
    left = left_operand(normed, -(-normed.shape[1] // LANES) * LANES)
    out = product(k, layer.feed_forward, "latent_up", left)
    gather(k, "layer_gather", out[:SUBLANES] + k.ws["shared"][...])
