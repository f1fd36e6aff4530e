"""Shared fixtures. Environment variables are set before anything imports jax."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"

from pathlib import Path

# Programs compiled by one test process are read by the others and by the next run. A key says all
# that a program was made of: none can be stale.
os.environ["KIMI_CACHE_DIR"] = str(Path(__file__).parents[1] / ".cache")
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)

import pytest

import kimi  # noqa: F401  (settles the environment before jax is imported)
from kimi.models import Model, open_model
from kimi.program_cache import keep_programs

keep_programs()

TESTS = Path(__file__).parent
DATA = TESTS / "data"
# What `scripts/test.sh --fast` leaves out, decided here alone: folders, files or single tests that
# start processes, compile for TPU v7, interpret whole kernels, train, or take 10 seconds of a core.
FULL = (
    "interpret",
    "lab",
    "unit/cli/test_benchmark.py",
    "unit/cli/test_cluster.py",
    "unit/cli/test_commands.py::test_generate_in_bfloat16",
    "unit/decoding/test_decoder.py::test_prefill_of_a_long_prompt_takes_several_calls",
    "unit/decoding/test_decoder.py::test_sampled_first_token_is_distributed_as_the_target",
    "unit/eval/test_paths.py",
    "unit/eval/test_scripts.py",
    "unit/eval/test_tiny.py",
    "unit/kernels_ops/test_lowering.py",
    "unit/lab",
    "unit/loading/test_hosts.py",
    "unit/scripts",
    "unit/test_process.py",
    "unit/test_startup.py",
)


def pytest_configure() -> None:
    """An entry of `FULL` that names nothing would leave nothing out: it is an error."""
    for entry in FULL:
        path, _, name = entry.partition("::")
        if not (TESTS / path).exists() or (
            name and f"\ndef {name}(" not in (TESTS / path).read_text()
        ):
            raise pytest.UsageError(f"tests/conftest.py: FULL: expected a test, found {entry}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what `FULL` names."""
    for item in items:
        test = f"{item.path.relative_to(TESTS).as_posix()}::{item.originalname}"
        if any(test == entry or test.startswith((f"{entry}/", f"{entry}::")) for entry in FULL):
            item.add_marker("full")


@pytest.fixture(scope="session")
def tiny() -> Model:
    """The small trained K3 with its drafter, float32."""
    return open_model()
