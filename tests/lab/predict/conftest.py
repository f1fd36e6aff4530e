"""Compiles all test kernels once a session, in one process: starting it takes longest."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from kimi.errors import KimiError
from kimi.lab.predict.launch import Built, Target, compile_targets

ROOT = Path(__file__).parents[3]
KERNELS = ("scalars", "ring", "exchange", "leaky_exchange")
FAULTY = ("unlowerable", "wrong_topology")
SPACES = ("vmem", "scoped", "smem", "sflag", "hbm")
LIBTPU = importlib.util.find_spec("libtpu") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="libtpu is not installed (extra `tpu`)")
    for item in items:
        if not LIBTPU and item.path.parent == Path(__file__).parent:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def outcomes() -> dict[str, Built | KimiError]:
    """What became of each builder of `tests.lab.predict.kernels`."""
    targets = [Target(f"tests.lab.predict.kernels:{name}") for name in KERNELS + FAULTY]
    targets += [Target("tests.lab.predict.kernels:oversized", {"space": space}) for space in SPACES]
    names = [*KERNELS, *FAULTY, *SPACES]
    return dict(zip(names, compile_targets(targets, path=[str(ROOT)]), strict=True))


@pytest.fixture
def built(outcomes: dict[str, Built | KimiError]) -> Callable[[str], Built]:
    """A kernel that compiled, by the name of its builder."""

    def get(name: str) -> Built:
        found = outcomes[name]
        assert isinstance(found, Built), found
        return found

    return get
