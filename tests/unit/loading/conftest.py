import shutil

import pytest

from tests.unit.loading.models import write_small


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A random checkpoint that 32 ranks can share, in three files."""
    return write_small(tmp_path_factory.mktemp("checkpoint") / "small")


@pytest.fixture(scope="session")
def finished(small, tmp_path_factory):
    """A store of `small` that nobody changes."""
    from tests.unit.loading.test_store import write

    path = tmp_path_factory.mktemp("stores") / "finished"
    write(small, path)
    return path


@pytest.fixture
def store(finished, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(finished, tmp_path / "store")
