"""The residual stream and attention residuals: what each sublayer sees, and what sublayers add."""

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from kimi.kernels.chip import LANES
from kimi.kernels.collectives import receive, sum_and_send
from kimi.kernels.context import Kernel, Layer, left_operand, rows_to_tile
from kimi.kernels.layer_table import Column
from kimi.kernels.ops import attn_res
from kimi.kernels.ops.lanes import F32
from kimi.kernels.refs import Scalar
from kimi.kernels.streaming import kda_store, open_store, vectors_copy


def _score_weight(layer: Layer, name: str) -> Array:
    return layer.vector(f"{name}_norm") * layer.vector(f"{name}_proj")


def freeze_residuals(k: Kernel, layer: Layer, name: str, count: Scalar) -> None:
    """Combines the first `count` streams of the residuals for the attention residual `name` of
    `layer`."""
    ws, entries = k.ws, range(k.ws["residuals"].shape[0])
    residuals = [ws["residuals"][i] for i in entries]
    inverse = [ws["residual_norms"][i] for i in entries]
    frozen = attn_res.freeze(residuals, inverse, _score_weight(layer, name), count)
    width = ws["stream"].shape[1]
    ws["residual_sum"][:, :width] = frozen.combined
    statistics = (frozen.maximum, frozen.denominator, frozen.square)
    for i, statistic in enumerate(statistics):
        ws["residual_sum"][:, width + i * LANES : width + (i + 1) * LANES] = statistic


def _attn_res(k: Kernel, layer: Layer, name: str, norm: str) -> None:
    """The normed attention residual of block residuals and stream."""
    ws, eps = k.ws, k.config.rms_norm_eps
    width = ws["stream"].shape[1]
    statistics = [
        ws["residual_sum"][:, width + i * LANES : width + (i + 1) * LANES] for i in range(3)
    ]
    frozen = attn_res.Frozen(ws["residual_sum"][:, :width], *statistics)
    score_weight, weight = _score_weight(layer, name), layer.vector(norm)
    normed = attn_res.attn_res_norm(frozen, ws["stream"][...], score_weight, weight, eps)
    ws["normed"][...] = left_operand(normed.astype(F32))


def attention_res(k: Kernel, layer: Layer) -> None:
    """What the attention sees. Requests the vectors of the next layer."""
    _attn_res(k, layer, "attention_res", "attention_norm")
    vectors_copy(k, layer.index + 1).start()


def tap(k: Kernel, layer: Layer) -> None:
    """Keeps the stream for the drafter, if it reads the stream that enters this layer."""
    number = layer[Column.TAP]

    @pl.when(number > 0)
    def _() -> None:
        k.refs["taps"][number - 1] = k.ws["stream"][...]


def mlp_residuals(k: Kernel, layer: Layer) -> None:
    """The stream joins the residuals at the start of a block of layers; their part for the MLP."""
    count = layer[Column.RESIDUALS]

    @pl.when(layer[Column.STARTS_BLOCK] > 0)
    def _() -> None:
        stream = k.ws["stream"][...]
        k.ws["residuals"][count - 1] = stream
        k.ws["residual_norms"][count - 1] = attn_res.inverse_rms(stream, k.config.rms_norm_eps)

    freeze_residuals(k, layer, "mlp_res", count)


def output_tap(k: Kernel, layer: Layer) -> None:
    """Keeps the stream behind the last layer for the drafter."""
    last = k.plan.settings.taps.index(k.config.num_hidden_layers)
    k.refs["taps"][last] = k.ws["stream"][...]


def attention_sum(k: Kernel, layer: Layer) -> None:
    """This rank's columns of the attention's output."""
    sum_and_send(k, "attention_scatter", "attention_gather")


def attention_join(k: Kernel, layer: Layer) -> None:
    """The attention's output is added to the stream, or begins a new one."""
    out, stream = rows_to_tile(receive(k, "attention_gather")), k.ws["stream"][...]
    k.ws["stream"][...] = jnp.where(layer[Column.STARTS_BLOCK] > 0, out, stream + out)


def mlp_res(k: Kernel, layer: Layer) -> None:
    """What the feed-forward part sees."""
    _attn_res(k, layer, "mlp_res", "mlp_norm")


def attention_residuals(k: Kernel, layer: Layer) -> None:
    """The residuals' part for the next layer, whose vectors must be here."""
    following = Layer(k, layer.index + 1, None)
    vectors_copy(k, following.index).wait()
    freeze_residuals(k, following, "attention_res", layer[Column.RESIDUALS])


def layer_join(k: Kernel, layer: Layer) -> None:
    """The feed-forward part's output is added; what the attention stored must be in HBM."""
    out = receive(k, "layer_gather")
    k.ws["stream"][...] = k.ws["stream"][...] + rows_to_tile(out)
    state = layer[Column.STATE]

    @pl.when(layer[Column.MLA] == 0)
    def _() -> None:
        kda_store(k, state).wait()

    @pl.when(layer[Column.MLA] > 0)
    def _() -> None:
        open_store(k, state).wait()


def output_res(k: Kernel, layer: Layer) -> None:
    """What the head sees."""
    _attn_res(k, layer, "attention_res", "attention_norm")
