import jax.numpy as jnp
import numpy as np

from kimi.lab.train import teacher
from kimi.lab.train.generation import Sequences
from kimi.reference.state import initial_state
from tests import tolerances


def test_watch_keeps_taps_and_hidden_rows_of_every_sequence(run, target_model, target_weights):
    """Three sequences in batches of two: the last batch is filled up and cut again."""
    ids = (np.arange(3 * 32).reshape(3, 32) * 31 % 1792).astype(np.int32)
    sequences = Sequences(ids, np.array([3, 4, 5]), np.array([32, 20, 10]))
    seen = teacher.watch(run, run.draft_config, target_model, target_weights, sequences)
    assert seen.first.tolist() == [2, 3, 4] and seen.lengths.tolist() == [32, 20, 10]
    model = target_model.merge(target_weights)
    out = model(jnp.asarray(ids[2]), initial_state(run.config, 32, jnp.float32))
    for found, expected in (
        (seen.taps[2], out.taps(run.draft_config.aux_hidden_state_layer_ids)),
        (seen.hidden[2], out.hidden),
    ):
        assert found.dtype == jnp.bfloat16
        scale = float(jnp.abs(expected).max())
        np.testing.assert_allclose(
            found.astype(jnp.float32), expected, atol=tolerances.OPS_BF16 * scale
        )
