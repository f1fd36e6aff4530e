"""The residual stream and its bank: mixes before each sublayer, and what sublayers add."""

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from kimi.kernels.chip import LANES
from kimi.kernels.collectives import receive, sum_and_send
from kimi.kernels.context import Kernel, Layer, left_operand, rows_to_tile
from kimi.kernels.layer_table import Column
from kimi.kernels.ops import mix
from kimi.kernels.ops.lanes import F32
from kimi.kernels.refs import Scalar
from kimi.kernels.streaming import kda_store, open_store, vectors_copy


def _score_weight(layer: Layer, name: str) -> Array:
    return layer.vector(f"{name}_norm") * layer.vector(f"{name}_proj")


def freeze_bank(k: Kernel, layer: Layer, name: str, count: Scalar) -> None:
    """Combines the first `count` streams of the bank for the mix `name` of `layer`."""
    ws, entries = k.ws, range(k.ws["bank"].shape[0])
    bank = [ws["bank"][i] for i in entries]
    inverse = [ws["bank_norms"][i] for i in entries]
    frozen = mix.freeze(bank, inverse, _score_weight(layer, name), count)
    width = ws["stream"].shape[1]
    ws["bank_mix"][:, :width] = frozen.combined
    statistics = (frozen.maximum, frozen.denominator, frozen.square)
    for i, statistic in enumerate(statistics):
        ws["bank_mix"][:, width + i * LANES : width + (i + 1) * LANES] = statistic


def _mix(k: Kernel, layer: Layer, name: str, norm: str) -> None:
    """The normed mix of bank and stream."""
    ws, eps = k.ws, k.config.rms_norm_eps
    width = ws["stream"].shape[1]
    statistics = [ws["bank_mix"][:, width + i * LANES : width + (i + 1) * LANES] for i in range(3)]
    frozen = mix.Frozen(ws["bank_mix"][:, :width], *statistics)
    score_weight, weight = _score_weight(layer, name), layer.vector(norm)
    normed = mix.mix_norm(frozen, ws["stream"][...], score_weight, weight, eps)
    ws["normed"][...] = left_operand(normed.astype(F32))


def attention_mix(k: Kernel, layer: Layer) -> None:
    """What the attention sees. Requests the vectors of the next layer."""
    _mix(k, layer, "attention_mix", "attention_norm")
    vectors_copy(k, layer.index + 1).start()


def tap(k: Kernel, layer: Layer) -> None:
    """Keeps the stream for the drafter, if it reads the stream that enters this layer."""
    number = layer[Column.TAP]

    @pl.when(number > 0)
    def _() -> None:
        k.refs["taps"][number - 1] = k.ws["stream"][...]


def mlp_bank(k: Kernel, layer: Layer) -> None:
    """The stream joins the bank at the start of a block of layers; the bank for the MLP's mix."""
    count = layer[Column.BANK]

    @pl.when(layer[Column.STARTS_BLOCK] > 0)
    def _() -> None:
        stream = k.ws["stream"][...]
        k.ws["bank"][count - 1] = stream
        k.ws["bank_norms"][count - 1] = mix.inverse_rms(stream, k.config.rms_norm_eps)

    freeze_bank(k, layer, "mlp_mix", count)


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


def mlp_mix(k: Kernel, layer: Layer) -> None:
    """What the feed-forward part sees."""
    _mix(k, layer, "mlp_mix", "mlp_norm")


def attention_bank(k: Kernel, layer: Layer) -> None:
    """The bank for the mix of the next layer, whose vectors must be here."""
    following = Layer(k, layer.index + 1, None)
    vectors_copy(k, following.index).wait()
    freeze_bank(k, following, "attention_mix", layer[Column.BANK])


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


def output_mix(k: Kernel, layer: Layer) -> None:
    """What the head sees."""
    _mix(k, layer, "attention_mix", "attention_norm")
