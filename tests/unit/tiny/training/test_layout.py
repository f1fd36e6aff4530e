import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from kimi.checkpoint import Checkpoint
from kimi.models import open_model
from kimi.reference.loading import draft_tensor_name, tensor_name
from kimi.reference.state import initial_state
from kimi.tiny import ASSETS
from kimi.tiny.training import layout
from kimi.tiny.training.rounding import all_stored
from kimi.tiny.training.weights import save_model

TOKENS = jnp.arange(20) * 91 % 1792


@pytest.fixture(scope="module")
def exported(run, target_model, target_weights, draft_model, draft_weights, tmp_path_factory):
    own = dataclasses.replace(run, out=tmp_path_factory.mktemp("exported"))
    models = (
        target_model.merge(all_stored(target_weights)),
        draft_model.merge(all_stored(draft_weights)),
    )
    save_model(models[0], own.target_file, tensor_name)
    save_model(models[1], own.calibrated_file, draft_tensor_name)
    layout.export(own)
    return own.checkpoint, *models


def test_the_library_reads_back_the_same_model(run, exported):
    folder, target, drafter = exported
    checkpoint = Checkpoint.open(folder)
    checkpoint.check()
    loaded = open_model(folder)
    for ours, theirs in ((target, loaded.target), (drafter, loaded.drafter)):
        assert ours is not None and theirs is not None
    state = initial_state(run.config, 32, jnp.float32)
    logits = [m.logits(m(TOKENS, state).hidden) for m in (target, loaded.target)]
    assert (logits[0] == logits[1]).all()
    hidden = jnp.ones((3, run.draft_config.hidden_size))
    for ours, theirs in zip(
        drafter.heads(hidden, TOKENS[:3]), loaded.drafter.heads(hidden, TOKENS[:3]), strict=True
    ):
        assert (ours == theirs).all()


def test_the_layout_is_that_of_the_shipped_model(exported):
    """Names, dtypes and padding, of a layer of each kind; and the same set of files."""
    folder = exported[0]
    shipped, made = Checkpoint.open(ASSETS), Checkpoint.open(folder)
    for name in made:
        words = name.split(".")
        kda = {"layers.1.": "layers.3."}  # the small model's MLA layer comes earlier
        twin = name
        for ours, theirs in kda.items():
            twin = twin.replace(ours, theirs)
        assert twin in shipped, f"{words}"
        assert made[name].dtype == shipped[twin].dtype
        if name.endswith("A_log"):
            assert made[name].shape == shipped[twin].shape == (128,)
    kinds = {file.suffix for file in folder.rglob("*") if file.is_file()}
    assert kinds == {".json", ".model", ".safetensors"}
    assert not folder.with_suffix(".part").exists()


def test_shards_hold_a_layer_each():
    names = ["language_model.model.layers.0.a", "language_model.model.layers.1.b",
             "language_model.lm_head.weight", "language_model.model.norm.weight"]  # fmt: skip
    parts = layout.shards({name: np.zeros(1) for name in names}, 2)
    assert [sorted(part) for part in parts] == [names[:1], names[1:2], names[2:]]
