"""Every function compiles for TPU v7 inside a kernel, and gives the same in interpret mode."""

import importlib
import importlib.util
import inspect
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kimi
from kimi.kernels.ops import experts, kda, router
from tests import waiting
from tests.tolerances import OPS_INTERPRETED
from tests.unit.kernels_ops.cases import CASES, Case, f32, kernel
from tests.unit.kernels_ops.support import close

ROOT = Path(kimi.__file__).parents[1]
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed: nothing here can compile for a TPU (pip install libtpu)",
)


@pytest.fixture(scope="module")
def compiled():
    """One process for all: loading libtpu takes longer than compiling."""
    program = [sys.executable, "-m", "tests.unit.kernels_ops.cases"]
    done = waiting.run(program, 30, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs_libtpu
@pytest.mark.parametrize("name", CASES)
def test_compiles_for_tpu_v7(compiled, name):
    assert compiled[name] == ""


def test_every_public_function_of_arrays_has_a_case():
    """What is not named is part of another case."""
    parts = {
        "start", "situ", "route_rows", "valid_words", "scores", "inverse_rms", "attn_res",
        "normalise", "unpack_bf16", "features", "panels", "vector_panels", "total",
    }  # fmt: skip
    named = {name.split()[0] for name in CASES}
    for file in (ROOT / "kimi" / "kernels" / "ops").glob("*.py"):
        if file.stem in ("__init__", "lanes"):
            continue
        module = importlib.import_module(f"kimi.kernels.ops.{file.stem}")
        for name, value in vars(module).items():
            here = getattr(value, "__module__", "") == module.__name__
            if here and inspect.isfunction(value) and name[0] != "_":
                assert f"{file.stem}.{name}" in named or name in parts, f"{file.stem}.{name}"


def random_inputs(case):
    """float32 normals; words of bytes that are finite as bfloat16, FP8, codes and scales alike."""
    rng = np.random.default_rng(0)
    for x in case.arrays:
        if x.dtype == jnp.uint32:
            yield jnp.asarray(rng.integers(0x30, 0x40, (*x.shape, 4), np.uint8).view("<u4")[..., 0])
        elif x.dtype == jnp.int32:
            yield jnp.asarray(rng.integers(0, 600, x.shape), jnp.int32)
        else:
            yield jnp.asarray(rng.standard_normal(x.shape), x.dtype)
    yield from (jnp.asarray([n], jnp.int32) for n in (1, 5)[: case.scalars])


SMALL = {
    "kda": Case(
        lambda h, n, taps, count: (kda.short_conv(h, n, taps), kda.advance_conv_state(h, n, count)),
        (f32(8, 256), f32(8, 256), f32(4, 2, 128)),
        1,
    ),
    "router": Case(
        lambda b, s, rows: router.union(
            router.route_rows(b, s, 4, 1.0), rows, jnp.ones(b.shape, bool), 32
        ),
        (f32(8, 32), f32(8, 32)),
        1,
    ),
    "experts": CASES["experts.mxfp4_down 96"],
    "experts fp8": Case(
        lambda h, w, s: experts.fp8_down(h, experts.Coded(w, s), 1.0),
        (f32(8, 32), CASES["experts.fp8_down"].arrays[2].update(shape=(2, 8, 128)),
         CASES["experts.fp8_down"].arrays[3].update(shape=(8, 128))),
    ),
    "mla insert": CASES["mla.insert_rows 8"],
    "mla": CASES["mla.accumulate 1 row"],
    "reduce": CASES["reduce.sum_bf16"],
    "head": CASES["head.update"],
}  # fmt: skip


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL.keys())
def test_interpret_mode_equals_plain_jax(case):
    inputs = list(random_inputs(case))
    arrays, scalars = inputs[: len(case.arrays)], [x[0] for x in inputs[len(case.arrays) :]]
    plain = jax.tree.leaves(jax.jit(case.function)(*arrays, *scalars))
    inside = jax.jit(kernel(case, interpret=True))(*inputs)
    for a, b in zip(inside, plain, strict=True):
        if jnp.issubdtype(b.dtype, jnp.integer):
            np.testing.assert_array_equal(a, b)
        else:
            close(a, b, OPS_INTERPRETED)
