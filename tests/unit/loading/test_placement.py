"""Weights on devices, from a checkpoint and from a store."""

import jax
import numpy as np
import pytest

from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.loading import placement
from kimi.loading.arrays import ARRAYS
from kimi.loading.errors import LoadError
from kimi.loading.load import load_checkpoint
from kimi.loading.placement import DeviceMemory, HostMemory, rank_devices
from tests.packing.target import pack


@pytest.mark.parametrize("form", ExpertFormat)
@pytest.mark.parametrize("kind", [HostMemory, DeviceMemory])
def test_one_device(small, kind, form, monkeypatch):
    monkeypatch.setattr(placement, "HostMemory", kind)
    layout = Layout(small.config, Mesh(1), form)
    seen = []
    weights = load_checkpoint(small, layout, report=lambda *progress: seen.append(progress))
    expected = pack(layout, dict(small), 0)
    for name in ARRAYS:
        found = getattr(weights, name)
        assert found.shape == (1, *layout.shapes[name])
        np.testing.assert_array_equal(found[0], getattr(expected, name))
    assert seen[-1][0] == seen[-1][1] > 0


def test_cpu_devices_take_the_memory_as_it_is(small):
    layout = Layout(small.config, Mesh(1))
    memory = HostMemory(layout, {0: jax.devices()[0]})
    with memory.chunk(0, "experts", 0, layout.shapes["experts"][1]) as part:
        place = part.ctypes.data
    found = memory.finish()[0, "experts"]
    assert found.addressable_shards[0].data.unsafe_buffer_pointer() == place


def test_too_few_devices(small):
    count = len(jax.devices())
    with pytest.raises(LoadError, match=f"devices: expected 32, one a rank, found {count}"):
        rank_devices(Mesh(32))
    with pytest.raises(LoadError, match="devices: expected one for each of 2 ranks, found 1"):
        load_checkpoint(small, Layout(small.config, Mesh(2, 2)), jax.devices()[:1])
