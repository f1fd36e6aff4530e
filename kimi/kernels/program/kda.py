"""Kimi Delta Attention."""

import jax
import jax.numpy as jnp
from jax import Array

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.collectives import all_gather, receive, reduce_scatter
from kimi.kernels.context import Kernel, Layer, left_operand, read_tiles, rows_to_tile, write_tiles
from kimi.kernels.layer_table import Column
from kimi.kernels.ops import kda as ops
from kimi.kernels.streaming import kda_load, kda_store, product_into, start_next_state


def kda_gates(k: Kernel, layer: Layer) -> None:
    """The low-rank decay's inner values, which all ranks need, and the gates beta."""
    product_into(k, layer.attention, "kda_gates", k.ws["normed"], k.ws["gates"])
    own = k.mesh.local(k.config.kda.head_dim)
    all_gather(k, "decay_gather", k.ws["gates"][: k.row_tile, :own])


def kda_in(k: Kernel, layer: Layer) -> None:
    """q, k, v and the output gate."""
    product_into(k, layer.attention, "kda_in", k.ws["normed"], k.ws["projected"])


def kda_decay(k: Kernel, layer: Layer) -> None:
    """Log decays of this rank's channels."""
    left = left_operand(receive(k, "decay_gather"))
    product_into(k, layer.attention, "kda_decay", left, k.ws["decay"])


def kda_delta(k: Kernel, layer: Layer) -> None:
    """The delta rule; the state goes out in a new record."""
    record, config = k.plan.record, k.config.kda
    kda_load(k, 0).wait()
    width = record.channels
    if record.rows.sequences > 1:
        q, key, v = _thirds(_convolve_batch(k, layer), width)
    else:
        q, key, v = _thirds(_convolve(k, layer), width)
    rate = jnp.exp(layer.vector("decay_rate"))
    raw, bias = k.ws["decay"][:SUBLANES, :width], layer.vector("decay_bias")
    g = ops.log_decay(raw, bias, rate, config.gate_lower_bound)
    own = k.mesh.local(config.head_dim)
    beta = jax.nn.sigmoid(k.ws["gates"][:SUBLANES, own : own + record.heads])
    rows = ops.Rows(q, key, v, g, beta)
    out = _block(k, rows) if record.rows.rolls_back else _step(k, rows)
    gate = k.ws["projected"][:SUBLANES, 3 * width : 4 * width]
    normed = ops.gated_norm(out, layer.row("kda_norm"), gate, k.config.rms_norm_eps)
    k.ws["attended"][...] = left_operand(normed, k.ws["attended"].shape[1])
    start_next_state(layer, lambda state: kda_load(k, state).start())
    kda_store(k, layer[Column.STATE]).start()


def kda_out(k: Kernel, layer: Layer) -> None:
    """Partial sums of the output."""
    product_into(k, layer.attention, "kda_out", k.ws["attended"], k.ws["partial"])
    reduce_scatter(k, "attention_scatter", k.ws["partial"])


def _thirds(x: Array, width: int) -> tuple[Array, Array, Array]:
    return x[:, :width], x[:, width : 2 * width], x[:, 2 * width : 3 * width]


def _convolve(k: Kernel, layer: Layer) -> Array:
    """The rows of one sequence after convolution; keeps what the next step needs."""
    record, old, new = k.plan.record, k.ws["kda_record"], k.ws["kda_new_record"]
    width = 3 * record.channels
    conv_state = read_tiles(old, record.conv_row(0), width)
    if record.rows.rolls_back:
        before = read_tiles(old, record.fresh, width)
        conv_state = ops.advance_conv_state(conv_state, before, k.step.num_accepted)
    fresh = k.ws["projected"][:SUBLANES, :width]
    if record.rows.rolls_back:
        write_tiles(new, record.conv_row(0), conv_state)
        write_tiles(new, record.fresh, fresh)
    else:
        write_tiles(new, record.conv_row(0), ops.advance_conv_state(conv_state, fresh, 1))
    return ops.short_conv(conv_state, fresh, jnp.stack(layer.conv_weights("conv")))


def _convolve_batch(k: Kernel, layer: Layer) -> Array:
    """As `_convolve` for rows of several sequences."""
    record, old, new = k.plan.record, k.ws["kda_record"], k.ws["kda_new_record"]
    width = 3 * record.channels
    earlier = [read_tiles(old, record.conv_row(i), width) for i in range(record.kernel_size - 1)]
    fresh = k.ws["projected"][:SUBLANES, :width]
    for i, tile in enumerate([*earlier[1:], fresh]):
        write_tiles(new, record.conv_row(i), tile)
    return ops.short_conv_batch(jnp.stack(earlier), fresh, jnp.stack(layer.conv_weights("conv")))


def _recurrent_state(k: Kernel) -> Array:
    """The recurrent states of the record, [sequences, H, V, K]."""
    record = k.plan.record
    rows = k.ws["kda_record"][: record.recurrent_rows, :]
    shape = (record.rows.sequences, record.heads, record.width, LANES)
    return rows.reshape(shape)[..., : record.width]


def _keep_recurrent_state(k: Kernel, recurrent_state: Array) -> None:
    record = k.plan.record
    flat = recurrent_state.reshape(record.recurrent_rows, record.width)
    k.ws["kda_new_record"][: record.recurrent_rows, : record.width] = flat


def _step(k: Kernel, rows: ops.Rows) -> Array:
    """One row of every sequence."""
    out, recurrent_state = ops.step(rows, _recurrent_state(k))
    _keep_recurrent_state(k, recurrent_state)
    return rows_to_tile(out)


def _block(k: Kernel, rows: ops.Rows) -> Array:
    """A block behind the rows of the last one that were accepted."""
    record, old, new = k.plan.record, k.ws["kda_record"], k.ws["kda_new_record"]
    tiles = (read_tiles(old, record.trace(i), record.channels) for i in range(3))
    recurrent_state = ops.replay(_recurrent_state(k)[0], ops.Trace(*tiles), k.step.num_accepted)
    _keep_recurrent_state(k, recurrent_state)
    out, trace = ops.chunk(rows, recurrent_state, record.rows.count)
    for i, tile in enumerate(trace):
        write_tiles(new, record.trace(i), tile)
    return out
