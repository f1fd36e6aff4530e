"""The reference model against mlx-lm's kimi_k3 (logits and every layer's streams, float32)."""

import jax.numpy as jnp
import numpy as np
import pytest

from kimi.models import open_model
from kimi.reference.model import K3
from kimi.reference.state import initial_state, rollback
from tests.conftest import DATA
from tests.programs import compiled
from tests.tolerances import K3_GOLDEN

GOLDEN = DATA / "k3_tiny"
IDS = np.array((GOLDEN / "ids.txt").read_text().split(), np.int32)
LOGITS = np.load(GOLDEN / "logits.npy")
STREAMS = np.load(GOLDEN / "taps.npz")
LAYERS = 5


@pytest.fixture(scope="module")
def model() -> K3:
    return open_model(GOLDEN, draft=False).runner.target


@pytest.fixture(scope="module")
def one_shot(model):
    config = open_model(GOLDEN, draft=False).config
    state = initial_state(config, len(IDS), jnp.float32)
    return compiled(K3.__call__, model)(jnp.asarray(IDS), state)


def test_logits_one_shot(model, one_shot):
    np.testing.assert_allclose(model.logits(one_shot.hidden), LOGITS, rtol=0, atol=K3_GOLDEN)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_prefix_after_layer(one_shot, layer):
    """The drafter's taps are these streams, not the mixes: a mix here costs the acceptance."""
    expected = STREAMS[f"prefix{layer}"]
    np.testing.assert_allclose(one_shot.prefixes[layer + 1], expected, rtol=0, atol=K3_GOLDEN)
    np.testing.assert_array_equal(one_shot.taps((layer + 1,)), one_shot.prefixes[layer + 1])
    if layer:  # the golden itself tells the two streams apart
        assert abs(expected - STREAMS[f"mix{layer}"]).max() > 100 * K3_GOLDEN


@pytest.mark.parametrize("layer", range(LAYERS))
def test_mix_entering_layer(one_shot, layer):
    np.testing.assert_allclose(
        one_shot.attn_res[layer], STREAMS[f"mix{layer}"], rtol=0, atol=K3_GOLDEN
    )


def test_prefill_twelve_then_steps(model):
    config = open_model(GOLDEN, draft=False).config
    state = initial_state(config, 32, jnp.float32)
    prefill, step = compiled(K3.__call__, model), compiled(K3.rows, model)
    out = prefill(jnp.asarray(IDS[:12]), state)
    hidden, state = [out.hidden], out.state
    for token in IDS[12:]:
        out = step(jnp.asarray([token]), state)
        hidden.append(out.hidden)
        state = rollback(out.state, state.length, jnp.int32(1))
    logits = model.logits(jnp.concatenate(hidden))
    np.testing.assert_allclose(logits, LOGITS, rtol=0, atol=K3_GOLDEN)


def test_all_tokens_as_rows_of_one_block(model):
    state = initial_state(open_model(GOLDEN, draft=False).config, 32, jnp.float32)
    out = compiled(K3.rows, model)(jnp.asarray(IDS), state)
    np.testing.assert_allclose(model.logits(out.hidden), LOGITS, rtol=0, atol=K3_GOLDEN)
