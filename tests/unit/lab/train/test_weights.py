import jax.numpy as jnp
import numpy as np
import pytest

from kimi.errors import InputError
from kimi.lab.train.weights import is_matrix, load_drafter, load_model, read_tensors, save_model
from kimi.reference.loading import weights_of
from kimi.reference.tensors import draft_tensor_name, tensor_name


def equal(a, b):
    return a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)


def test_merge_and_back(target_model, target_weights):
    assert equal(weights_of(target_model.merge(target_weights)), target_weights)


def test_models_come_back_from_files(
    run, target_model, target_weights, draft_model, draft_weights, tmp_path
):
    save_model(target_model.merge(target_weights), tmp_path / "t", tensor_name)
    save_model(draft_model.merge(draft_weights), tmp_path / "d", draft_tensor_name)
    target = load_model(read_tensors(tmp_path / "t"), run.config)
    drafter = load_drafter(read_tensors(tmp_path / "d"), run.draft_config)
    assert equal(weights_of(target), target_weights)
    assert equal(weights_of(drafter), draft_weights)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["d", "t"]


def test_missing_and_damaged_files_are_named(tmp_path):
    (tmp_path / "cut").write_bytes(b"\x08\0\0")
    for name in ("absent", "cut"):
        with pytest.raises(InputError, match=f"{name}: expected tensors of an earlier step"):
            read_tensors(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "shape", "decays"),
    [
        ("layers.0.self_attn.q_proj.weight", (4, 4), True),
        ("layers.1.block_sparse_moe.experts.w1", (2, 4, 4), True),
        ("layers.0.self_attn.q_conv1d.weight", (4, 1, 4), False),
        ("layers.0.mlp_res.proj", (1, 4), False),
        ("output_attn_res.proj", (1, 4), False),
        ("norm.weight", (4,), False),
    ],
)
def test_weight_decay_is_for_matrices(name, shape, decays):
    assert is_matrix(name, jnp.zeros(shape)) == decays


def test_initial_weights_are_of_the_intended_size(fresh_weights):
    """Standard deviations that the training rates were chosen for."""
    w = {name: np.asarray(x) for name, x in fresh_weights.items()}
    hidden, attention = w["embed_tokens.weight"].shape[1], "layers.0.self_attn."
    expected = {
        "embed_tokens.weight": 0.5,
        "lm_head.weight": 0.3 * hidden**-0.5,
        attention + "q_proj.weight": hidden**-0.5,
        attention + "o_proj.weight": 0.3 * w[attention + "o_proj.weight"].shape[1] ** -0.5,
    }
    for name, std in expected.items():
        assert w[name].std() == pytest.approx(std, rel=0.05), name
    zeros = [name for name, x in w.items() if not x.any()]
    assert sorted(zeros) == sorted(
        [n for n in w if n.endswith(("res.proj", "A_log", "e_score_correction_bias"))]
    )
    decay = 5 / (1 + np.exp(-w[attention + "dt_bias"]))
    assert 0.003 <= decay.min() and decay.max() <= 1
