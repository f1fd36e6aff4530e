"""The tokenizer of the tiny K3, which has K3's control tokens at the same offsets."""

from pathlib import Path

import pytest

from kimi.assets import TINY_K3
from kimi.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def assets() -> Path:
    return TINY_K3


@pytest.fixture(scope="session")
def tokenizer(assets: Path) -> Tokenizer:
    return Tokenizer.from_dir(assets)
