"""The shipped files are the ones the published scores were measured with."""

import hashlib
import json

import pytest

from kimi.tiny import ASSETS

SHA256 = {
    "config.json": "8b86541e50e9012c",
    "dspark/config.json": "48b7a7df51c0a79f",
    "dspark/model.safetensors": "d0a705b578f81363",
    "generation_config.json": "460ca051efe13a0e",
    "model-00001-of-000007.safetensors": "5503a4eedebebf45",
    "model-00002-of-000007.safetensors": "16f73ca1d710ef1e",
    "model-00003-of-000007.safetensors": "b4a4b6aec5c399b6",
    "model-00004-of-000007.safetensors": "a5804c3da3c1b112",
    "model-00005-of-000007.safetensors": "0d05963d1320ab5d",
    "model-00006-of-000007.safetensors": "1fee0c6660d853f3",
    "model-00007-of-000007.safetensors": "e974f7b1296a1c2c",
    "model.safetensors.index.json": "c9f6c66aa053ddbb",
    "tiktoken.model": "467edc1d0ab5f893",
    "tokenizer_config.json": "8db7d46762f5d396",
    "NOTICE-WordNet.txt": "9e9652caea9cb960",
}


@pytest.mark.parametrize("name", SHA256)
def test_file_is_unchanged(name: str):
    assert hashlib.sha256((ASSETS / name).read_bytes()).hexdigest()[:16] == SHA256[name]


def test_index_names_every_shard_and_nothing_else():
    index = json.loads((ASSETS / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {p.name for p in ASSETS.glob("model-*")}


def test_card_and_notice_accompany_the_weights():
    card = (ASSETS / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "NOTICE-WordNet.txt" in card
    assert "World English Bible" in card
