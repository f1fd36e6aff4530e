"""A KDA layer over a chunk, from the decode kernel's record of a block to the next one.

A block's record is the state before the block and what its rows did. It is replayed as far as rows
were accepted, and left with none accepted: `kernels.records.KdaRecord`.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from kimi.kernels.chip import LANES, SUBLANES
from kimi.kernels.ops.kda import L2_EPS
from kimi.kernels.records import KdaRecord
from kimi.prefill.delta import Rows, chunked
from kimi.prefill.layer import Layer, Span
from kimi.prefill.matrices import left


def _read(record: Array, first: int, width: int) -> Array:
    """Register tiles below each other as rows [8, width]; see `kernels.context.read_tiles`."""
    count = -(-width // LANES)
    tiles = record[first : first + count * SUBLANES].reshape(count, SUBLANES, LANES)
    return tiles.swapaxes(0, 1).reshape(SUBLANES, -1)[:, :width]


def _tiled(rows: Array) -> Array:
    """The inverse of `_read`, zeros behind the last column: [8, width] -> [rows, 128]."""
    full = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % LANES)))
    return full.reshape(SUBLANES, -1, LANES).swapaxes(0, 1).reshape(-1, LANES)


def _recurrent_state(form: KdaRecord, record: Array, num_accepted: Array) -> Array:
    """The state [H, V, K] behind the rows that were accepted; see `kernels.ops.kda.replay`."""
    shape = (form.heads, form.width, form.width)
    recurrent_state = record[: form.recurrent_rows, : form.width].reshape(shape)
    trace = (_read(record, form.trace(i), form.channels) for i in range(3))
    update, key, total = (x.reshape(SUBLANES, form.heads, form.width) for x in trace)
    row = jnp.arange(SUBLANES)[:, None, None]
    end = jnp.sum(jnp.where(row == num_accepted - 1, total, 0), 0)
    # Rows that were not accepted may hold anything, NaN included.
    key = jnp.where(row < num_accepted, key * jnp.exp(jnp.minimum(end - total, 0)), 0)
    update = jnp.where(row < num_accepted, update, 0)
    written = jnp.einsum("rhv,rhk->hvk", update, key, precision="highest")
    return recurrent_state * jnp.exp(end)[:, None] + written


def _conv_state(form: KdaRecord, record: Array, num_accepted: Array) -> Array:
    """The newest accepted rows before the convolution, [8, 3 channels]."""
    width = 3 * form.channels
    both = [_read(record, first, width) for first in (form.conv_row(0), form.fresh)]
    return lax.dynamic_slice_in_dim(jnp.concatenate(both), num_accepted, SUBLANES)


def _store(form: KdaRecord, conv_state: Array, recurrent_state: Array) -> Array:
    """A record of which no row is accepted."""
    flat = recurrent_state.reshape(form.recurrent_rows, form.width)
    flat = jnp.pad(flat, ((0, form.conv_state - len(flat)), (0, LANES - form.width)))
    front = jnp.concatenate([flat, _tiled(conv_state)])
    return jnp.pad(front, ((0, form.total - len(front)), (0, 0)))


def _convolve(tokens: Array, weights: Array) -> Array:
    """Causal depthwise convolution, then SiLU: [8 + T, C], weights [kernel_size, C] -> [T, C]."""
    kernel_size, count = weights.shape[0], tokens.shape[0] - SUBLANES
    first = SUBLANES + 1 - kernel_size
    y = sum(tokens[first + j : first + j + count] * weights[j] for j in range(kernel_size))
    assert isinstance(y, Array)
    return y * jax.nn.sigmoid(y)


def _normalised(x: Array) -> Array:
    return x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + L2_EPS)


def _log_decay(layer: Layer, raw: Array) -> Array:
    """Log decays of all tokens and channels of this rank, [T, C]."""
    bias, rate = layer.vectors["decay_bias"], jnp.exp(layer.vectors["decay_rate"])
    return layer.config.kda.gate_lower_bound * jax.nn.sigmoid(rate * (raw + bias))


def attend(layer: Layer, x: Array, record: Array, num_accepted: Array) -> tuple[Array, Array]:
    """The layer's attention.

    Args:
      x: bfloat16 [T, D] from `matrices.left`, all tokens.
      record: float32 [rows, 128], the layer's on this rank.
      num_accepted: [] int32, rows that were accepted of the record's block.

    Returns: partial sums float32 [T, D]; the new record, with no row accepted.
    """
    form, tiles = layer.plan.record, layer.attention
    channels, tokens = form.channels, x.shape[0]
    own = layer.plan.layout.mesh.local(form.width)
    gates = tiles.product("kda_gates", x)
    inner = layer.collectives.gather_columns(gates[:, :own])
    projected = tiles.product("kda_in", x)
    raw = tiles.product("kda_decay", left(inner))
    fresh, gate = projected[:, : 3 * channels], projected[:, 3 * channels :]
    both = jnp.concatenate([_conv_state(form, record, num_accepted), fresh])
    rows = _rows(layer, _convolve(both, layer.vectors.conv_weights("conv")), raw, gates[:, own:])
    out, recurrent_state = chunked(
        rows, _recurrent_state(form, record, num_accepted), layer.interpret
    )
    out = out.reshape(tokens, form.heads, form.width)
    normed = out * lax.rsqrt(jnp.mean(out * out, -1, keepdims=True) + layer.config.rms_norm_eps)
    gated = normed * layer.vectors["kda_norm"] * jax.nn.sigmoid(gate.reshape(out.shape))
    partial = tiles.product("kda_out", left(gated.reshape(tokens, channels)))
    conv_state = lax.dynamic_slice_in_dim(both, layer.span.count, SUBLANES)
    return partial, _store(form, conv_state, recurrent_state)


def _rows(layer: Layer, convolved: Array, raw: Array, beta: Array) -> Rows:
    """The rows of the delta rule; dead ones leave no trace."""
    form: KdaRecord = layer.plan.record
    shape = (convolved.shape[0], form.heads, form.width)
    q, k, v = (x.reshape(shape) for x in jnp.split(convolved, 3, 1))
    valid = _valid(layer.span, shape[0])
    g = jnp.where(valid, _log_decay(layer, raw), 0)
    beta = jnp.where(valid, jax.nn.sigmoid(beta), 0)
    scale = form.width**-0.5
    q, k = _normalised(q) * scale, _normalised(k)
    q, k, v = (x.reshape(shape[0], -1) for x in (q, k, v))
    return Rows(q, k, v, g, beta)


def _valid(span: Span, tokens: int) -> Array:
    return (jnp.arange(tokens) < span.count)[:, None]
