"""The feed-forward part of layers without experts, and its halves that shared experts use too."""

from kimi.kernels.collectives import scatter, sum_and_send
from kimi.kernels.context import Kernel, Layer, left_operand
from kimi.kernels.ops.experts import situ
from kimi.kernels.streaming import product_into


def gate_and_up(k: Kernel, layer: Layer, name: str, width: int) -> None:
    """SiTU of gate and up, to be multiplied by the down-projection."""
    product_into(k, layer.feed_forward, name, k.ws["normed"], k.ws["gate_up"])
    both = k.ws["gate_up"]
    hidden = situ(both[:, :width], both[:, width : 2 * width], *betas(k))
    k.ws["hidden"][...] = left_operand(hidden, k.ws["hidden"].shape[1])


def down(k: Kernel, layer: Layer, name: str) -> None:
    """Partial sums of the output."""
    product_into(k, layer.feed_forward, name, k.ws["hidden"], k.ws["partial"])
    scatter(k, "mlp_scatter", k.ws["partial"])


def betas(k: Kernel) -> tuple[float, float]:
    """Of SiTU."""
    return k.config.activation_situ_beta, k.config.activation_situ_linear_beta


def dense_in(k: Kernel, layer: Layer) -> None:
    """Gate and up."""
    gate_and_up(k, layer, "dense_in", k.mesh.local(k.config.intermediate_size))


def dense_out(k: Kernel, layer: Layer) -> None:
    """Down."""
    down(k, layer, "dense_out")


def dense_sum(k: Kernel, layer: Layer) -> None:
    """This rank's columns of the output."""
    sum_and_send(k, "mlp_scatter", "layer_gather")
