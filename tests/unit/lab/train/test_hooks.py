import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kimi.lab.train import hooks
from kimi.reference.state import initial_state
from tests import tolerances

TOKENS = jnp.arange(32) * 37 % 1792


@pytest.mark.parametrize("several", [False, True])
def test_dropout_keeps_the_mean_and_other_outputs(several):
    class Ones(nnx.Module):
        def __call__(self, x):
            return (x, "state") if several else x

    dropped = hooks.Dropout(Ones(), jax.random.key(0), jnp.float32(0.25))(jnp.ones((200, 200)))
    if several:
        dropped, state = dropped
        assert state == "state"
    assert np.isclose(dropped.mean(), 1, atol=0.02)
    assert set(np.unique(dropped).round(5)) == {0, np.float32(4 / 3).round(5)}
    assert np.isclose((dropped == 0).mean(), 0.25, atol=0.02)


def test_routing_is_recorded_in_every_moe_layer(run, target_model, target_weights):
    state = initial_state(run.config, 32, jnp.float32)

    @jax.jit
    def routes():
        model = target_model.merge(target_weights)
        layer, router = model.layers[1], model.layers[1].block_sparse_moe.gate
        seen = hooks.record_routing(model)
        out = model(TOKENS, state)
        attended, _ = layer.self_attn(
            layer.input_layernorm(out.attn_res[1]), state.layers[1], jnp.int32(0), jnp.int32(32)
        )
        # Layer 1 does not start a block: its bank is the embedding, which layer 0 put there.
        mixed = layer.mlp_res([out.attn_res[0]], out.prefixes[1] + attended)
        return seen, router(layer.post_attention_layernorm(mixed))[0]

    seen, expected = routes()
    assert len(seen) == 1 and seen[0].shape == (32, run.config.num_experts_per_token)
    assert (seen[0] == expected).all()


def test_dense_experts_are_the_gathered_ones(run, target_model, target_weights):
    z = jax.random.normal(jax.random.key(1), (1, run.config.routed_expert_hidden_size))
    ids, weights = jnp.array([[2, 0]]), jnp.array([[0.7, 0.3]])

    @jax.jit
    def both():
        model = target_model.merge(target_weights)
        moe = model.layers[1].block_sparse_moe
        gathered = moe.experts.gathered(z, ids, weights)
        hooks.run_all_experts(model)
        return gathered, moe.experts(z, ids, weights)

    np.testing.assert_allclose(*both(), atol=tolerances.EXPERT_FORMS)
