import dataclasses

import numpy as np
import pytest
from safetensors import safe_open

from kimi.assets import TINY_K3
from kimi.checkpoint import Checkpoint
from kimi.lab.train import layout
from kimi.lab.train.rounding import all_stored
from kimi.lab.train.weights import save_model
from kimi.models import open_model
from kimi.reference.loading import weights_of
from kimi.reference.tensors import draft_tensor_name, tensor_name


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


def test_the_library_reads_back_the_same_weights(exported):
    """Equal weights in equal modules: equal logits."""
    folder, target, drafter = exported
    Checkpoint.open(folder).check()
    loaded = open_model(folder)
    for ours, theirs in ((target, loaded.runner.target), (drafter, loaded.runner.drafter)):
        before, after = weights_of(ours), weights_of(theirs)
        assert before.keys() == after.keys()
        for name, w in before.items():
            assert (np.asarray(w) == np.asarray(after[name])).all(), name


def test_the_layout_is_that_of_the_shipped_model(exported):
    """Same names, dtypes and padding in a layer of each kind, same kinds of files."""

    def headers(folder):
        found = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a dictionary)
                    part = tensors.get_slice(name)
                    found[name] = (part.get_dtype(), part.get_shape())
        return found

    folder = exported[0]
    shipped, made = headers(TINY_K3), headers(folder)
    for name, (dtype, shape) in made.items():
        twin = name.replace("layers.1.", "layers.3.")  # the first MLA layer with experts
        assert shipped[twin][0] == dtype
        if name.endswith("A_log"):
            assert shape == shipped[twin][1] == [128]
    kinds = {file.suffix for file in folder.rglob("*") if file.is_file()}
    assert kinds == {".json", ".model", ".safetensors"}
    assert not folder.with_suffix(".part").exists()


def test_shards_hold_a_layer_each():
    names = ["language_model.model.layers.0.a", "language_model.model.layers.1.b",
             "language_model.lm_head.weight", "language_model.model.norm.weight"]  # fmt: skip
    parts = layout.shards({name: np.zeros(1) for name in names}, 2)
    assert [sorted(part) for part in parts] == [names[:1], names[1:2], names[2:]]
