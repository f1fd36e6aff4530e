"""The residual stream and its bank: mixes before each sublayer, and what sublayers add."""

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from kimi.kernels.chip import LANES
from kimi.kernels.collectives import gathered, sum_and_send, wait
from kimi.kernels.context import Layer, left_operand, rows_to_tile
from kimi.kernels.layer_table import Column
from kimi.kernels.ops import mix
from kimi.kernels.ops.lanes import F32
from kimi.kernels.refs import Scalar
from kimi.kernels.streaming import kda_store, open_store, vectors_copy


def _score_weight(layer: Layer, name: str) -> Array:
    return layer.vector(f"{name}_norm") * layer.vector(f"{name}_proj")


def freeze_bank(layer: Layer, name: str, count: Scalar) -> None:
    """Combines the first `count` streams of the bank for the mix `name` of `layer`."""
    ws = layer.kernel.ws
    entries = range(ws["bank"].shape[0])
    bank = [ws["bank"][i] for i in entries]
    inverse = [ws["bank_norms"][i] for i in entries]
    frozen = mix.freeze(bank, inverse, _score_weight(layer, name), count)
    width = ws["stream"].shape[1]
    ws["bank_mix"][:, :width] = frozen.combined
    statistics = (frozen.maximum, frozen.denominator, frozen.square)
    for i, statistic in enumerate(statistics):
        ws["bank_mix"][:, width + i * LANES : width + (i + 1) * LANES] = statistic


def _mix(layer: Layer, name: str, norm: str) -> Array:
    """The normed mix of bank and stream, float32 [8, D] that holds bfloat16 values."""
    ws, eps = layer.kernel.ws, layer.kernel.config.rms_norm_eps
    width = ws["stream"].shape[1]
    statistics = [ws["bank_mix"][:, width + i * LANES : width + (i + 1) * LANES] for i in range(3)]
    frozen = mix.Frozen(ws["bank_mix"][:, :width], *statistics)
    score_weight, weight = _score_weight(layer, name), layer.vector(norm)
    return mix.mix_norm(frozen, ws["stream"][...], score_weight, weight, eps).astype(F32)


def attention_mix(layer: Layer) -> None:
    """What the attention sees. Requests the vectors of the next layer."""
    k = layer.kernel
    normed = _mix(layer, "attention_mix", "attention_norm")
    k.ws["normed"][...] = left_operand(normed, normed.shape[1])
    vectors_copy(k, layer.index + 1).start()


def tap(layer: Layer) -> None:
    """Keeps the stream for the drafter, if it reads the stream that enters this layer."""
    k, number = layer.kernel, layer[Column.TAP]

    @pl.when(number > 0)
    def _() -> None:
        k.results.taps[number - 1] = k.ws["stream"][...]


def mlp_bank(layer: Layer) -> None:
    """The stream joins the bank at the start of a block of layers; the bank for the MLP's mix."""
    k = layer.kernel
    count = layer[Column.BANK]

    @pl.when(layer[Column.STARTS_BLOCK] > 0)
    def _() -> None:
        stream = k.ws["stream"][...]
        k.ws["bank"][count - 1] = stream
        k.ws["bank_norms"][count - 1] = mix.inverse_rms(stream, k.config.rms_norm_eps)

    freeze_bank(layer, "mlp_mix", count)


def output_tap(layer: Layer) -> None:
    """Keeps the stream behind the last layer for the drafter."""
    k = layer.kernel
    taps = k.plan.settings.taps
    k.results.taps[taps.index(k.config.num_hidden_layers)] = k.ws["stream"][...]


def attention_sum(layer: Layer) -> None:
    """This rank's columns of the attention's output."""
    sum_and_send(layer.kernel, "attention_scatter", "attention_gather")


def attention_join(layer: Layer) -> None:
    """The attention's output is added to the stream, or begins a new one."""
    k = layer.kernel
    wait(k, "attention_gather")
    (out,) = gathered(k, "attention_gather")
    out, stream = rows_to_tile(out), k.ws["stream"][...]
    k.ws["stream"][...] = jnp.where(layer[Column.STARTS_BLOCK] > 0, out, stream + out)


def mlp_mix(layer: Layer) -> None:
    """What the feed-forward part sees."""
    normed = _mix(layer, "mlp_mix", "mlp_norm")
    layer.kernel.ws["normed"][...] = left_operand(normed, normed.shape[1])


def attention_bank(layer: Layer) -> None:
    """The bank for the mix of the next layer, whose vectors must be here."""
    following = Layer(layer.kernel, layer.index + 1, None)
    vectors_copy(layer.kernel, following.index).wait()
    freeze_bank(following, "attention_mix", layer[Column.BANK])


def layer_join(layer: Layer) -> None:
    """The feed-forward part's output is added; what the attention stored must be in HBM."""
    k = layer.kernel
    wait(k, "layer_gather")
    (out,) = gathered(k, "layer_gather")
    k.ws["stream"][...] = k.ws["stream"][...] + rows_to_tile(out)
    state = layer[Column.STATE]

    @pl.when(layer[Column.MLA] == 0)
    def _() -> None:
        kda_store(k, state).wait()

    @pl.when(layer[Column.MLA] > 0)
    def _() -> None:
        open_store(k, state).wait()


def output_mix(layer: Layer) -> None:
    """What the head sees."""
    k = layer.kernel
    normed = _mix(layer, "attention_mix", "attention_norm")
    k.ws["normed"][...] = left_operand(normed, normed.shape[1])
