from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kimi.errors import InputError
from kimi.lab.predict.compile import bytes_by_family, whole_argument
from kimi.lab.predict.topology import compiler_environment, device_count


@pytest.mark.parametrize("name,count", [("tpu7x:2x2x4", 32), ("tpu7x:2x2x1", 8)])
def test_device_count(name, count):
    assert device_count(name) == count


@pytest.mark.parametrize("name", ["", "v5e:2x2", "tpu7x:", "tpu7x:2x0x1", "tpu7x:axb"])
def test_bad_topology(name):
    with pytest.raises(InputError, match="tpu7x:AxBxC"):
        device_count(name)


def test_environment_replaces_flags_and_keeps_the_rest():
    base = {"LIBTPU_INIT_ARGS": "--old", "PATH": "/bin", "JAX_PLATFORMS": "tpu"}
    plain = compiler_environment(base=base)
    assert "LIBTPU_INIT_ARGS" not in plain
    assert (plain["PATH"], plain["JAX_PLATFORMS"]) == ("/bin", "cpu")
    dumping = compiler_environment(Path("/dump"), source_lines=True, base=base)
    assert "--xla_jf_dump_to=/dump" in dumping["LIBTPU_INIT_ARGS"]
    assert "source_annotations" in dumping["LIBTPU_INIT_ARGS"]
    assert base["LIBTPU_INIT_ARGS"] == "--old"


def test_bytes_by_family_count_one_shard():
    mesh = Mesh(np.array(jax.devices()[:1]), ("tp",))
    here = NamedSharding(mesh, PartitionSpec())
    tree = {
        "kda": {"wq": jax.ShapeDtypeStruct((8, 4), np.float32, sharding=here)},
        "experts": jax.ShapeDtypeStruct((6, 3), jax.numpy.float4_e2m1fn),
    }
    assert bytes_by_family(tree, whole_argument) == {"kda": 128, "experts": 9}
    assert bytes_by_family(tree, lambda path: "all") == {"all": 137}
