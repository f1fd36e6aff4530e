import pytest

from tests.unit.loading.models import write_small


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A random checkpoint that 32 ranks can share, in three files."""
    return write_small(tmp_path_factory.mktemp("checkpoint") / "small")
