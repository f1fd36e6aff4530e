"""Expert slices in both weight formats against float64 products of the decoded weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kimi.activation import situ
from kimi.checkpoint import PackedWeight
from kimi.codecs import fp8, mxfp4
from kimi.kernels.experts import ExpertBlock, ExpertFormat
from kimi.kernels.ops import experts
from tests.tolerances import FORMULA, OPS_EXPERT
from tests.unit.kernels_ops.support import bf16, close, coded, f64

BETAS = (4.0, 25.0)
gate_up4 = jax.jit(experts.mxfp4_gate_up, static_argnums=(2, 3))
gate_up8 = jax.jit(experts.fp8_gate_up, static_argnums=(2, 3))
down4, down8 = jax.jit(experts.mxfp4_down), jax.jit(experts.fp8_down)
fold = jax.jit(experts.fold_groups)
# Latent width, slice of the expert width, tokens.
SIZES = pytest.mark.parametrize(
    "latent,width,tokens",
    [(640, 192, 1), (128, 32, 2), (384, 320, 2), (128, 96, 1)],
    ids=["a full slice", "half a register", "two blocks", "a register and a half"],
)


def weight(rng, outputs, inputs):
    """A random MXFP4 weight: packed codes, scale bytes, float64 value [out, in]."""
    packed = rng.integers(0, 256, (outputs, inputs // 2), dtype=np.uint8)
    scale = rng.integers(110, 121, (outputs, inputs // 32), dtype=np.uint8)
    return packed, scale, mxfp4.decode(packed, scale, np.float64)


def as_mxfp4(packed, scale):
    return coded(packed, scale)


def as_fp8(packed, scale):
    blocks = fp8.encode_blocks(packed, scale)
    return coded(
        blocks.values.view(np.uint8), (blocks.scales.view(np.uint16) >> 7).astype(np.uint8)
    )


def expert_of(rng, latent, width, form):
    """Coded gate and up, coded down, and the three float64 weights."""
    (pg, sg, gate), (pu, su, up), (pd, sd, down) = (
        weight(rng, *shape) for shape in ((width, latent), (width, latent), (latent, width))
    )
    return form(np.concatenate([pg, pu]), np.concatenate([sg, su])), form(pd, sd), gate, up, down


def expected_hidden(z, gate, up):
    g, u = f64(bf16(z)) @ gate.T, f64(bf16(z)) @ up.T
    with np.errstate(over="ignore"):
        return 100 * np.tanh(g / 4) / (1 + np.exp(-g)) * np.tanh(u / 25)


def check(expert, z, hidden, width, down):
    """`hidden`, then `down(routing)` with a row that did not choose the expert."""
    _, _, gate, up, down_value = expert
    close(hidden[:, :width], expected_hidden(z, gate, up), OPS_EXPERT)
    assert not np.asarray(hidden)[:, width:].any()
    routing = np.random.default_rng(1).random(len(z)).astype(np.float32)
    routing[-1] = 0.0
    sums = routing[:, None] * (f64(bf16(hidden[:, :width])) @ down_value.T)
    found = np.asarray(down(routing))
    close(found[:, : sums.shape[1]], sums, OPS_EXPERT)
    assert not found[len(z) - 1].any()  # weight 0 is exactly nothing


@SIZES
def test_mxfp4(latent, width, tokens):
    rng = np.random.default_rng(latent)
    z = rng.standard_normal((tokens, latent)).astype(np.float32)
    expert = expert_of(rng, latent, width, as_mxfp4)
    hidden = gate_up4(experts.spread_groups(jnp.asarray(z)), expert[0], width, BETAS)
    check(expert, z, hidden, width, lambda w: fold(down4(hidden, expert[1], list(w))))


@SIZES
def test_fp8(latent, width, tokens):
    rng = np.random.default_rng(latent)
    z = rng.standard_normal((8, latent)).astype(np.float32)
    expert = expert_of(rng, latent, width, as_fp8)
    hidden = gate_up8(jnp.asarray(z), expert[0], width, BETAS)
    check(expert, z, hidden, width, lambda w: down8(hidden, expert[1], w[:, None]))


@pytest.mark.parametrize("form,name", [(as_mxfp4, "mxfp4"), (as_fp8, "fp8")])
def test_the_layout_packs_what_is_read_here(form, name):
    """A block as it lies in memory holds exactly the two `Coded` matrices."""
    latent, width = 384, 96
    parts = [
        weight(np.random.default_rng(0), *s) for s in 2 * [(width, latent)] + [(latent, width)]
    ]
    block = ExpertBlock(ExpertFormat(name), latent, width)
    packed = block.pack(*(PackedWeight(codes, scale) for codes, scale, _ in parts))
    both = form(*(np.concatenate([parts[0][i], parts[1][i]]) for i in (0, 1)))
    for matrix, expected in ((block.gate_up, both), (block.down, form(*parts[2][:2]))):
        words = packed[matrix.row : matrix.scale_row].reshape(expected.words.shape)
        np.testing.assert_array_equal(words, expected.words)
        np.testing.assert_array_equal(packed[matrix.scale_row : matrix.stop], expected.scales)


@pytest.mark.parametrize("byte", [2, 100, 254])
def test_every_code_and_the_ends_of_the_scales(byte):
    """A unit input reads the weights bit by bit; smaller scales give what float32 flushes."""
    packed = np.tile(np.arange(256, dtype=np.uint8), (32, 1)).T.reshape(256, 32)[:, :16]
    scale = np.full((256, 1), byte, np.uint8)
    hidden = jnp.zeros((1, 64)).at[0, 5].set(1.0)
    out = fold(down4(hidden, coded(packed, scale), [1.0]))[0]
    with np.errstate(over="ignore"):
        exact = (mxfp4.VALUES[packed[:, 2] >> 4] * 2.0 ** (byte - 127)).astype(np.float32)
    np.testing.assert_array_equal(out, exact)


def test_situ_equals_the_reference():
    gate, up = jnp.asarray(np.random.default_rng(0).uniform(-60, 60, (2, 8, 256)), jnp.float32)
    actual = jax.jit(experts.situ, static_argnums=(2, 3))(gate, up, *BETAS)
    close(actual, situ(gate, up, *BETAS), FORMULA)
