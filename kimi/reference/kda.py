"""Kimi Delta Attention: a gated delta rule with a decay per channel.

Per head, with q and k of width K, v of width V, recurrent state S [K, V] float32:

    S <- diag(exp(g)) S
    S <- S + beta k (v - k^T S)^T
    o  = q^T S                      (the updated S)

`recurrent` is this definition. `chunked` is the same map for many tokens, sixteen at a time.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax

from kimi.config import ModelConfig
from kimi.reference.numerics import F32, Linear, Precision, RMSNorm, l2_normalize
from kimi.reference.state import KdaState

# Within a chunk decays are factored as exp(G_t - G_c) exp(G_c - G_s) around its middle c. With log
# decays above -5 a token, 16 tokens keep both factors within e^+-40 and their product above e^-80:
# float32 neither overflows nor flushes a result to zero.
CHUNK = 16


def recurrent(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array
) -> tuple[Array, Array]:
    """The delta rule token by token.

    Args:
      q, k: [T, H, K] float32, normalised (q scaled).
      v: [T, H, V] float32.
      g: [T, H, K] float32 log decay, <= 0.
      beta: [T, H] float32 in (0, 1).
      state: [H, K, V] float32.

    Returns: outputs [T, H, V]; the state after every token [T, H, K, V].
    """

    def step(s: Array, row: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        q, k, v, g, beta = row
        s = s * jnp.exp(g)[..., None]
        predicted = jnp.einsum("hk,hkv->hv", k, s, precision="highest")
        s = s + k[..., None] * (beta[:, None] * (v - predicted))[:, None]
        return s, (jnp.einsum("hk,hkv->hv", q, s, precision="highest"), s)

    _, (out, states) = lax.scan(step, state, (q, k, v, g, beta))
    return out, states


def unit_lower_inverse(lower: Array) -> Array:
    """(I + L)^-1 for strictly lower triangular L [..., C, C], C a power of two.

    Doubling: once the diagonal blocks of size s are inverted (X), those of size 2s follow from
    X - X M X with M the blocks of L just below them. As stable as forward substitution, unlike the
    Neumann product, whose powers of L cancel badly for correlated keys.
    """
    size = lower.shape[-1]
    row, col = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
    inverse = jnp.broadcast_to(jnp.eye(size, dtype=lower.dtype), lower.shape)
    block = 1
    while block < size:
        below = (row // block == col // block + 1) & (row // (2 * block) == col // (2 * block))
        step = jnp.matmul(jnp.where(below, lower, 0), inverse, precision="highest")
        inverse = inverse - jnp.matmul(inverse, step, precision="highest")
        block *= 2
    return inverse


def chunked(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array
) -> tuple[Array, Array]:
    """The delta rule in chunks of 16 tokens (WY form); arguments as in `recurrent`.

    T must be a multiple of 16; a token with beta = 0 and g = 0 leaves the state as it is, which
    makes padding free.

    Returns: outputs [T, H, V]; the final state [H, K, V].
    """
    tokens, heads, _ = q.shape

    def split(x: Array) -> Array:  # [T, H, X] -> [T / 16, H, 16, X]
        return jnp.swapaxes(x.reshape(tokens // CHUNK, CHUNK, heads, -1), 1, 2)

    q, k, v, g, beta = (split(x) for x in (q, k, v, g, beta[..., None]))
    total = jnp.cumsum(g, -2)
    middle = total[..., CHUNK // 2 - 1 : CHUNK // 2, :]
    last = total[..., -1:, :]
    grow, shrink = jnp.exp(total - middle), jnp.exp(middle - total)

    def scores(rows: Array) -> Array:  # decayed rows_t . k_s
        return jnp.einsum("nhtk,nhsk->nhts", rows * grow, k * shrink, precision="highest")

    strict = jnp.tril(jnp.ones((CHUNK, CHUNK), bool), -1)
    inverse = unit_lower_inverse(jnp.where(strict, scores(k) * beta, 0))
    within = jnp.where(strict | jnp.eye(CHUNK, dtype=bool), scores(q), 0)
    from_start = jnp.exp(total)
    written = jnp.matmul(inverse, v * beta, precision="highest")
    read = jnp.matmul(inverse, k * from_start * beta, precision="highest")
    to_end = k * jnp.exp(last - total)

    def step(s: Array, c: tuple[Array, ...]) -> tuple[Array, Array]:
        written, read, q_start, within, to_end, decay = c
        update = written - jnp.matmul(read, s, precision="highest")
        out = jnp.matmul(q_start, s, precision="highest")
        out += jnp.matmul(within, update, precision="highest")
        s = s * decay[:, 0, :, None]
        return s + jnp.einsum("htk,htv->hkv", to_end, update, precision="highest"), out

    chunks = (written, read, q * from_start, within, to_end, jnp.exp(last))
    state, out = lax.scan(step, state, chunks)
    return jnp.swapaxes(out, 1, 2).reshape(tokens, heads, -1), state


class ShortConv(nnx.Module):
    """Causal depthwise convolution over tokens, then SiLU; weight [C, 1, size], oldest first."""

    def __init__(self, channels: int, size: int, rngs: nnx.Rngs):
        newest = jnp.zeros((channels, 1, size)).at[..., -1].set(1.0)
        noise = 0.2 * jax.random.normal(rngs.params(), (channels, 1, size))
        self.weight = nnx.Param(newest + noise)

    def __call__(self, x: Array) -> Array:
        """x [size - 1 + T, C], the first rows from before the T tokens -> [T, C] in x's dtype."""
        weight = self.weight[...][:, 0].astype(F32)
        size = weight.shape[1]
        tokens = x.shape[0] - size + 1
        y = sum(x[j : j + tokens].astype(F32) * weight[:, j] for j in range(size))
        return jax.nn.silu(y).astype(x.dtype)


class Kda(nnx.Module):
    """One KDA layer (`self_attn` of a layer in `kda_layers`); attribute names are those on disk."""

    def __init__(self, config: ModelConfig, precision: Precision, rngs: nnx.Rngs):
        kda, hidden = config.kda, config.hidden_size

        def linear(size_in: int, size_out: int, gain: float = 1.0) -> Linear:
            return Linear(size_in, size_out, precision, rngs, gain)

        self.q_proj, self.k_proj, self.v_proj, self.g_proj = (
            linear(hidden, kda.width) for _ in range(4)
        )
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (
            ShortConv(kda.width, kda.short_conv_kernel_size, rngs) for _ in range(3)
        )
        self.f_a_proj = linear(hidden, kda.head_dim)
        self.f_b_proj = linear(kda.head_dim, kda.width, 0.3)
        self.b_proj = linear(hidden, kda.num_heads)
        self.A_log = nnx.Param(jnp.zeros(kda.num_heads))
        self.dt_bias = nnx.Param(_initial_dt_bias(kda.width, kda.gate_lower_bound, rngs))
        self.o_norm = RMSNorm(kda.head_dim, config.rms_norm_eps)
        self.o_proj = linear(kda.width, hidden, 0.3)
        self.kda = kda

    def __call__(
        self, x: Array, state: KdaState, length: Array, num_valid: Array
    ) -> tuple[Array, KdaState]:
        """Many tokens in chunks.

        Args:
          x: [T, D] normed input, T a multiple of 16.
          state: before the first token.
          length: [] int32, position of the first token (unused: KDA has no positions).
          num_valid: [] int32; later rows are padding, without any effect.

        Returns: [T, D]; the state after the valid tokens.
        """
        del length
        conv_input, (q, k, v) = self._qkv(x, state)
        valid = (jnp.arange(x.shape[0]) < num_valid)[:, None]
        g = jnp.where(valid[..., None], self.log_decay(x), 0)
        beta = jnp.where(valid, self._beta(x), 0)
        out, recurrent_state = chunked(q, k, v, g, beta, state.recurrent_state)
        conv_state = lax.dynamic_slice_in_dim(conv_input, num_valid, len(state.conv_state))
        return self._output(x, out), KdaState(conv_state, recurrent_state)

    def rows(self, x: Array, state: KdaState, length: Array) -> tuple[Array, KdaState]:
        """Few tokens by the recurrence, keeping the state after each of them.

        Returns: [R, D]; states with a leading axis R (see `state.rollback`).
        """
        del length
        conv_input, (q, k, v) = self._qkv(x, state)
        log_decay, beta = self.log_decay(x), self._beta(x)
        out, recurrent_states = recurrent(q, k, v, log_decay, beta, state.recurrent_state)
        size = len(state.conv_state)
        conv_states = jnp.stack([conv_input[r + 1 : r + 1 + size] for r in range(x.shape[0])])
        return self._output(x, out), KdaState(conv_states, recurrent_states)

    def log_decay(self, x: Array) -> Array:
        """g = lower_bound * sigmoid(exp(A_log) (f_b(f_a(x)) + dt_bias)), [T, H, K] float32.

        The gate is a bounded sigmoid, neither softplus nor a clamp; A_log is per head, dt_bias per
        channel and inside the product. Source: K3 report eq. 5, `gate_lower_bound`.
        """
        shape = (*x.shape[:-1], self.kda.num_heads, self.kda.head_dim)
        raw = self.f_b_proj(self.f_a_proj(x)).astype(F32) + self.dt_bias[...].astype(F32)
        rate = jnp.exp(self.A_log[...].astype(F32))[:, None]
        return self.kda.gate_lower_bound * jax.nn.sigmoid(rate * raw.reshape(shape))

    def _beta(self, x: Array) -> Array:
        return jax.nn.sigmoid(self.b_proj(x).astype(F32))

    def _qkv(self, x: Array, state: KdaState) -> tuple[Array, tuple[Array, Array, Array]]:
        """Projections after convolution and normalisation, each [T, H, K] float32.

        Also returns the inputs of the convolutions, `conv_state` and T rows.
        """
        new = jnp.stack([self.q_proj(x), self.k_proj(x), self.v_proj(x)], 1)
        conv_input = jnp.concatenate([state.conv_state.astype(new.dtype), new])
        convs = (self.q_conv1d, self.k_conv1d, self.v_conv1d)
        shape = (x.shape[0], self.kda.num_heads, self.kda.head_dim)
        q, k, v = (conv(conv_input[:, j]).reshape(shape) for j, conv in enumerate(convs))
        q, k = l2_normalize(q) * self.kda.head_dim**-0.5, l2_normalize(k)
        return conv_input, (q, k, v.astype(F32))

    def _output(self, x: Array, out: Array) -> Array:
        """o_proj(RMSNorm(out) * o_norm * sigmoid(g_proj x)); out [T, H, V] float32."""
        normed = self.o_norm(out.astype(F32)).reshape(x.shape[0], -1)
        gated = normed * jax.nn.sigmoid(self.g_proj(x).astype(F32))
        return self.o_proj(gated.astype(x.dtype))


def _initial_dt_bias(width: int, lower_bound: float, rngs: nnx.Rngs) -> Array:
    """Biases that spread the initial log decays log-uniformly over 0.003 .. 1 nats a token."""
    decay = jnp.exp(jax.random.uniform(rngs.params(), (width,), minval=jnp.log(0.003), maxval=0.0))
    return jnp.log(decay / (-lower_bound - decay))
