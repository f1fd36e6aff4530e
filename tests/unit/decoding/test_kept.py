"""Programs of an earlier run: the same results without tracing, and no other run's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from kimi.decoding import kept
from kimi.decoding.kept import Kept, fingerprint
from kimi.decoding.programs import Parts, Programs
from kimi.program_cache import Store


def programs(tiny, folder: Path, made_of: str, build=None) -> Programs:
    """The drafter's programs, of a process that finds its own in the folder."""
    own = tiny.programs
    parts = [Parts(p.weights, build or p.build) for p in own._parts]
    return Programs(
        parts[0], tiny.config, np.float32, parts[1], own.draft_config,
        Kept(Store(folder), made_of),
    )  # fmt: skip


def not_traced(weights):
    raise AssertionError("traced")


def test_a_later_run_draws_the_same_without_tracing(tiny, tmp_path):
    expected = tiny.programs.draft(5, tiny.programs.empty_context(256).draft)
    for build in (None, not_traced):
        other = programs(tiny, tmp_path, "a", build)
        found = other.draft(5, other.empty_context(256).draft)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        assert all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(expected)))
    with pytest.raises(AssertionError, match="traced"):
        other = programs(tiny, tmp_path, "b", not_traced)
        other.draft(5, other.empty_context(256).draft)


def test_a_program_that_cannot_be_loaded_is_compiled(tiny, tmp_path):
    made = programs(tiny, tmp_path, "a")
    made.empty_context(256)
    store = Store(tmp_path)
    (path,) = tmp_path.iterdir()
    store.put(path.name, b"of another build")
    found = programs(tiny, tmp_path, "a").empty_context(256)
    assert int(found.target.length) == 0 and store.get(path.name) != b"of another build"


def test_shapes_are_computed_once(tmp_path):
    own = Kept(Store(tmp_path), "a")
    assert own.shapes("target", lambda: {"w": (2, 3)}) == {"w": (2, 3)}
    assert own.shapes("target", lambda: {}) == {"w": (2, 3)}
    assert own.shapes("drafter", lambda: {}) == {}
    assert Kept(Store(tmp_path), "b").shapes("target", lambda: {}) == {}


def test_everything_that_a_program_is_made_of_tells(tmp_path, monkeypatch):
    seen = {fingerprint("a"), fingerprint("b"), fingerprint("a", "b")}
    with jax.default_matmul_precision("bfloat16"):
        seen.add(fingerprint("a"))
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    seen.add(fingerprint("a"))
    root = Path(kept.kimi.__file__).parent
    for part in kept._CODE:
        shutil.copytree(root / part, tmp_path / part, ignore=shutil.ignore_patterns("*.pyc"))
    monkeypatch.setattr(kept, "kimi", SimpleNamespace(__file__=str(tmp_path / "__init__.py")))
    assert fingerprint("a") in seen
    with open(tmp_path / "reference" / "moe.py", "a") as file:
        file.write("# changed\n")
    seen.add(fingerprint("a"))
    assert len(seen) == 6


def test_what_a_plain_run_imports():
    """Neither flax nor the kernels, which take seconds."""
    code = "import sys, kimi.api; print(*{'flax', 'jax.experimental.pallas'} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []
