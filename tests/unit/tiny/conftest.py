import pytest

from kimi.text.tokenizer import Tokenizer
from kimi.tiny import ASSETS


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The shipped vocabulary."""
    return Tokenizer.from_dir(ASSETS)
