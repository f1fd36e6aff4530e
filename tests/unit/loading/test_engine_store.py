"""An engine from a store holds what one from the checkpoint holds; other stores are refused."""

import jax
import numpy as np
import pytest

import kimi
from kimi.assets import TINY_K3
from kimi.cli.main import main
from kimi.errors import InputError, KimiError


def test_a_store_gives_the_same_weights(tmp_path):
    store = tmp_path / "store"
    options = ["--model", str(TINY_K3), "--out", str(store), "--mesh", "1", "--experts", "mxfp4"]
    assert main(["preshard", *options]) == 0
    direct = kimi.load(backend="kernel")
    stored = kimi.load(backend="kernel", store=store)
    arrays = (jax.tree.leaves(engine.model.runner.placed.arrays) for engine in (direct, stored))
    for a, b in zip(*arrays, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(KimiError, match="experts: expected fp8, found mxfp4"):
        kimi.load(backend="kernel", store=store, experts="fp8")
    with pytest.raises(InputError, match="store: expected the backend 'kernel', found 'reference'"):
        kimi.load(store=store)
