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
from kimi.decoding.backend import Proposal
from kimi.decoding.kept import Kept, fingerprint
from kimi.decoding.reference import Parts, ReferenceBackend, ReferenceModel
from kimi.program_cache import Store


def backend(tiny, folder: Path, made_of: str, build=None) -> ReferenceBackend:
    """The model's programs, of a process that finds its own in the folder."""
    own = tiny.runner
    parts = [Parts(p.weights, build or p.build) for p in own.parts]
    model = ReferenceModel(
        parts[0], tiny.config, np.float32, parts[1], own.draft_config,
        Kept(Store(folder), made_of),
    )  # fmt: skip
    return model.backend(256, 1, drafts=True)


def drafted(own: ReferenceBackend):
    """A block behind a token, with the state after it; donates a new state."""
    draft = own.compile("draft", own.draft, 0, Proposal(0, 0))
    return draft(own.weights, own.empty())


def not_traced(weights):
    raise AssertionError("traced")


def test_a_later_run_draws_the_same_without_tracing(tiny, tmp_path):
    expected = drafted(tiny.runner.backend(256, 1, drafts=True))
    for build in (None, not_traced):
        found = drafted(backend(tiny, tmp_path, "a", build))
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        assert all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(expected)))
    with pytest.raises(AssertionError, match="traced"):
        drafted(backend(tiny, tmp_path, "b", not_traced))


def test_a_program_that_cannot_be_loaded_is_compiled(tiny, tmp_path):
    backend(tiny, tmp_path, "a").empty()
    store = Store(tmp_path)
    (path,) = tmp_path.iterdir()
    store.put(path.name, b"of another build")
    found = backend(tiny, tmp_path, "a").empty()
    assert int(found.lengths[0]) == 0 and store.get(path.name) != b"of another build"


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
