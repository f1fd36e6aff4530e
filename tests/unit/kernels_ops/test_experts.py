"""Expert slices in both weight formats against float64 products of the decoded weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.codecs import fp8, mxfp4
from kimi.kernels.ops import experts
from kimi.reference.numerics import situ
from tests.tolerances import FORMULA, OPS_EXPERT
from tests.unit.kernels_ops.support import bf16, close, f64, nibbles, tall, wide

BETAS = (4.0, 25.0)
gate_up4 = jax.jit(experts.mxfp4_gate_up, static_argnums=(3, 4))
gate_up8 = jax.jit(experts.fp8_gate_up, static_argnums=(3, 4))
down4, down8 = jax.jit(experts.mxfp4_down), jax.jit(experts.fp8_down)
fold = jax.jit(experts.fold_groups)
# Latent width, slice of the expert width, experts of the group, model width out.
SIZES = pytest.mark.parametrize(
    "latent,width,group",
    [(640, 192, 2), (256, 64, 1), (128, 16, 1), (384, 320, 2), (128, 96, 4)],
    ids=["full slice", "one block", "half a scale group", "two blocks", "four experts"],
)


def weight(rng, inputs, outputs):
    """A random MXFP4 weight [out, in]: codes, scale bytes, value."""
    packed = rng.integers(0, 256, (outputs, inputs // 2), dtype=np.uint8)
    scale = rng.integers(110, 124, (outputs, -(-inputs // 32)), dtype=np.uint8)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(outputs, inputs)
    factor = np.repeat(2.0 ** (scale.astype(int) - 127), 32, 1)[:, :inputs]
    return codes, scale, mxfp4.VALUES[codes] * factor, packed


def hidden_of(z, gate, up):
    g, u = f64(bf16(z)) @ gate.T, f64(bf16(z)) @ up.T
    return 100 * np.tanh(g / 4) / (1 + np.exp(-g)) * np.tanh(u / 25)


@SIZES
@pytest.mark.parametrize("tokens", [1, 2])
def test_mxfp4(latent, width, group, tokens):
    rng = np.random.default_rng(latent + tokens)
    z = rng.standard_normal((tokens, latent)).astype(np.float32)
    parts = [[weight(rng, latent, width), weight(rng, latent, width)] for _ in range(group)]
    columns = [w for pair in parts for w in pair]
    words = nibbles(np.concatenate([w[0] for w in columns]).T)
    scales = tall(np.concatenate([w[1] for w in columns]).T, 8)
    hidden = gate_up4(experts.spread_groups(jnp.asarray(z)), words, scales, group, BETAS)
    expected = np.concatenate([hidden_of(z, g[2], u[2]) for g, u in parts], 1)
    close(hidden, expected, OPS_EXPERT)

    downs = [weight(rng, width, 512) for _ in range(group)]
    routing = rng.random((group, tokens)).astype(np.float32)
    routing[0, 0] = 0.0  # this row did not choose the expert
    packings = [wide, tall]
    h = f64(bf16(hidden)).reshape(tokens, group, width)
    expected = sum(routing[e][:, None] * (h[:, e] @ downs[e][2].T) for e in range(group))
    for pack in packings:
        out = down4(
            hidden,
            nibbles(np.concatenate([d[0].T for d in downs])),
            [pack(d[1].T, 8) for d in downs],
            [list(r) for r in routing],
        )
        close(fold(out), expected, OPS_EXPERT)


@SIZES
def test_fp8(latent, width, group):
    rng = np.random.default_rng(latent)
    z = rng.standard_normal((8, latent)).astype(np.float32)

    def encode(inputs, outputs):
        """The codec's own re-encoding, where a slice may end within a block."""
        _, scale, value, packed = weight(rng, max(inputs, 32), outputs)
        blocks = fp8.encode_blocks(packed, scale)
        scale_bytes = (blocks.scales.view(np.uint16) >> 7).astype(np.uint8)
        return blocks.values[:, :inputs], scale_bytes, value[:, :inputs]

    parts = [[encode(latent, width), encode(latent, width)] for _ in range(group)]
    columns = [w for pair in parts for w in pair]
    values = jnp.asarray(np.concatenate([w[0] for w in columns]).T)
    scales = tall(np.concatenate([w[1] for w in columns]).T, 1)
    hidden = gate_up8(jnp.asarray(z), values, scales, group, BETAS)
    close(hidden, np.concatenate([hidden_of(z, g[2], u[2]) for g, u in parts], 1), OPS_EXPERT)

    downs = [encode(width, 512) for _ in range(group)]
    routing = rng.random((group, 8, 1)).astype(np.float32)
    routing[:, 3] = 0.0
    h = f64(bf16(hidden)).reshape(8, group, width)
    expected = sum(routing[e] * (h[:, e] @ downs[e][2].T) for e in range(group))
    for pack in (wide, tall):
        out = down8(
            hidden,
            jnp.asarray(np.concatenate([d[0].T for d in downs])),
            [pack(d[1].T, 1) for d in downs],
            list(routing),
        )
        close(out, expected, OPS_EXPERT)


def test_experts_without_weight_and_twice_the_same():
    """Weight 0 is exactly nothing, and an expert listed twice counts twice."""
    rng = np.random.default_rng(0)
    codes, scale, value, _ = weight(rng, 64, 512)
    hidden = jnp.asarray(bf16(rng.standard_normal((2, 64))))
    words, scales = nibbles(codes.T), wide(scale.T, 8)
    nothing = down4(hidden, words, [scales], [[0.0, 0.0]])
    assert not nothing.any()
    twice = down4(
        jnp.concatenate([hidden, hidden], 1),
        jnp.concatenate([words, words]),
        [scales, scales],
        [[0.25, 0.0], [0.5, 1.0]],
    )
    close(fold(twice), np.array([[0.75], [1.0]]) * (f64(hidden) @ value.T), OPS_EXPERT)


def test_every_code_and_the_ends_of_the_scales():
    """One code per column against a unit input; scale bytes 1 and 254 are powers like others."""
    codes = np.broadcast_to(np.tile(np.arange(16), 32), (32, 512))
    for byte in (1, 100, 254):
        scale = np.full((1, 512), byte, np.uint8)
        hidden = jnp.zeros((1, 32)).at[0, 5].set(1.0)
        out = fold(down4(hidden, nibbles(codes), [wide(scale, 8)], [[1.0]]))
        with np.errstate(over="ignore"):
            exact = (mxfp4.VALUES[codes[5]] * 2.0 ** (byte - 127)).astype(np.float32)
        np.testing.assert_array_equal(out[0], exact)


def test_situ_equals_the_reference():
    gate, up = jnp.asarray(np.random.default_rng(0).uniform(-60, 60, (2, 8, 256)), jnp.float32)
    actual = jax.jit(experts.situ, static_argnums=(2, 3))(gate, up, *BETAS)
    close(actual, situ(gate, up, *BETAS), FORMULA)
