"""The feed-forward part: dense, or routed experts in the latent space beside shared experts."""

import jax
from jax import Array
from jax.experimental.pallas import tpu as pltpu

from kimi.kernels.chip import SUBLANES
from kimi.kernels.collectives import (
    all_gather,
    gathered,
    receive,
    receive_sum,
    reduce_scatter,
    sum_and_send,
    wait,
)
from kimi.kernels.context import Kernel, Layer, left_operand, rows_to_tile, unit_rms
from kimi.kernels.ops import router
from kimi.kernels.ops.experts import situ
from kimi.kernels.ops.lanes import iota
from kimi.kernels.program.experts import keep_latents, run_experts, start_experts
from kimi.kernels.streaming import product, product_into


def _gate_and_up(k: Kernel, layer: Layer, name: str, width: int) -> None:
    """SiTU of gate and up, to be multiplied by the down-projection."""
    product_into(k, layer.feed_forward, name, k.ws["normed"], k.ws["gate_up"])
    both = k.ws["gate_up"]
    hidden = situ(both[:, :width], both[:, width : 2 * width], *k.betas)
    k.ws["hidden"][...] = left_operand(hidden, k.ws["hidden"].shape[1])


def _down(k: Kernel, layer: Layer, name: str) -> None:
    """Partial sums of the output."""
    product_into(k, layer.feed_forward, name, k.ws["hidden"], k.ws["partial"])
    reduce_scatter(k, "mlp_scatter", k.ws["partial"])


def route(k: Kernel, layer: Layer) -> None:
    """This rank's columns of the latent and of the router's scores."""
    all_gather(k, "route_gather", product(k, layer.feed_forward, "route", k.ws["normed"]))


def shared_in(k: Kernel, layer: Layer) -> None:
    """Gate and up of the shared experts."""
    _gate_and_up(k, layer, "shared_in", k.mesh.local(k.config.shared_intermediate_size))


def choose(k: Kernel, layer: Layer) -> None:
    """Exact choice of the experts by all ranks alike; requests those of the own group."""
    c, ws = k.config, k.ws
    wait(k, "route_gather")
    latent, logits = gathered(
        k, "route_gather",
        k.mesh.local(c.routed_expert_hidden_size), k.mesh.local(c.num_experts),
    )  # fmt: skip
    listed = _listed(k, layer, logits)
    ws["choice"][:, : listed.shape[1]] = listed
    pltpu.sync_copy(ws["choice"], ws["expert_list"])
    start_experts(k, layer)
    keep_latents(k, latent)


def _listed(k: Kernel, layer: Layer, logits: Array) -> Array:
    """The list of this rank's experts, see `routing.ListRow`; logits [1 or 8, E] float32."""
    c = k.config
    scores = jax.nn.sigmoid(logits)
    biased = scores + layer.row("route_bias")
    owned = k.mesh.owner(iota(scores.shape, 1)) == k.mesh.expert_group(k.rank)
    chosen, scaling = c.num_experts_per_token, c.routed_scaling_factor
    if k.row_tile == 1:
        return router.list_row(biased, scores, owned, chosen, scaling, k.plan.expert_list_slots)
    found = router.route_rows(biased, scores, chosen, scaling)
    return router.union(found, k.step.num_valid, owned, k.plan.expert_list_slots)


def experts(k: Kernel, layer: Layer) -> None:
    """The routed experts, as they come; partial sums over width and groups."""
    reduce_scatter(k, "latent_scatter", run_experts(k, layer))


def shared_out(k: Kernel, layer: Layer) -> None:
    """Down of the shared experts."""
    _down(k, layer, "shared_out")


def latent_sum(k: Kernel, layer: Layer) -> None:
    """This rank's columns of the routed experts' output, in the latent space."""
    sum_and_send(k, "latent_scatter", "latent_gather")


def shared_sum(k: Kernel, layer: Layer) -> None:
    """This rank's columns of the shared experts' output."""
    k.ws["shared"][...] = rows_to_tile(receive_sum(k, "mlp_scatter"))


def latent_up(k: Kernel, layer: Layer) -> None:
    """Norm, up-projection, and the shared experts: finished columns of the stream."""
    latent = receive(k, "latent_gather")
    left = left_operand(unit_rms(latent, k.config.rms_norm_eps) * layer.row("expert_norm"))
    out = product(k, layer.feed_forward, "latent_up", left)
    all_gather(k, "layer_gather", out[:SUBLANES] + k.ws["shared"][...])


def dense_in(k: Kernel, layer: Layer) -> None:
    """Gate and up."""
    _gate_and_up(k, layer, "dense_in", k.mesh.local(k.config.intermediate_size))


def dense_out(k: Kernel, layer: Layer) -> None:
    """Down."""
    _down(k, layer, "dense_out")


def dense_sum(k: Kernel, layer: Layer) -> None:
    """This rank's columns of the output."""
    sum_and_send(k, "mlp_scatter", "layer_gather")
