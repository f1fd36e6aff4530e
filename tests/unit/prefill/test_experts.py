"""The kernel of the experts, against their decoded weights."""

import jax.numpy as jnp
import numpy as np
import pytest

from kimi.checkpoint import PackedWeight
from kimi.kernels.experts import ExpertBlock, ExpertFormat
from kimi.kernels.ops.experts import situ
from kimi.prefill.experts import run_experts
from kimi.prefill.routing import routes
from tests.packing.inverses import decoded, unpack_expert
from tests.tolerances import PREFILL_EXPERTS

EXPERTS, TOKENS, CHOSEN, BETAS = 5, 90, 2, (4.0, 25.0)


def coded(rng, outputs, inputs):
    return PackedWeight(
        rng.integers(0, 256, (outputs, inputs // 2), np.uint8),
        rng.integers(118, 122, (outputs, inputs // 32), np.uint8),
    )


@pytest.mark.parametrize("form", list(ExpertFormat))
@pytest.mark.parametrize("latent, width", [(128, 64), (320, 96)])
def test_weighted_sums(form, latent, width):
    """Several tiles of one expert, one of few rows, one of none; blocks of other layers before."""
    rng = np.random.default_rng(0)
    block = ExpertBlock(form, latent, width)
    blocks = [
        block.pack(coded(rng, width, latent), coded(rng, width, latent), coded(rng, latent, width))
        for _ in range(2 * EXPERTS)
    ]
    local = np.stack([np.zeros(TOKENS), np.full(TOKENS, EXPERTS)], 1).astype(np.int32)
    local[::9, 1] = 3
    local[5, 1], local[80:, 0] = 4, EXPERTS
    weights = rng.random(local.shape).astype(np.float32)
    z = jnp.asarray(rng.standard_normal((TOKENS, latent)), jnp.bfloat16)
    found = run_experts(
        block, BETAS, routes(jnp.asarray(local), jnp.asarray(weights), EXPERTS), z,
        jnp.asarray(np.stack(blocks)), jnp.int32(EXPERTS), True,
    )  # fmt: skip
    assert found.shape == (TOKENS, latent)
    expected = np.zeros((TOKENS, latent), np.float32)
    for expert in range(EXPERTS):
        parts = unpack_expert(block, blocks[EXPERTS + expert])
        gate, up, down = (np.asarray(decoded(p), np.float32) for p in parts)
        x = np.asarray(z, np.float32)
        hidden = situ(jnp.asarray(x @ gate.T), jnp.asarray(x @ up.T), *BETAS)
        out = np.asarray(hidden.astype(jnp.bfloat16), np.float32) @ down.T
        expected += (np.where(local == expert, weights, 0).sum(1))[:, None] * out
    assert np.abs(found - expected).max() <= PREFILL_EXPERTS * np.abs(expected).max()
    assert not np.asarray(found)[80:][(local[80:] == EXPERTS).all(1)].any()
