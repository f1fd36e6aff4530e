"""The shipped files are the ones the published scores were measured with."""

import hashlib
import json

import pytest

from kimi.assets import TINY_K3

SHA256 = {
    "config.json": "8b86541e50e9012c",
    "dspark/config.json": "48b7a7df51c0a79f",
    "dspark/model.safetensors": "91a86dfee1377bf5",
    "generation_config.json": "460ca051efe13a0e",
    "model-00001-of-000007.safetensors": "5297093dc0b45d18",
    "model-00002-of-000007.safetensors": "4a92a3ed42354ae4",
    "model-00003-of-000007.safetensors": "6ba6a592855eb789",
    "model-00004-of-000007.safetensors": "a8176e6d909a87f8",
    "model-00005-of-000007.safetensors": "ca935841362626dc",
    "model-00006-of-000007.safetensors": "7d1647b5e08f0fc0",
    "model-00007-of-000007.safetensors": "b66dab977f0b3bdf",
    "model.safetensors.index.json": "c9f6c66aa053ddbb",
    "tiktoken.model": "467edc1d0ab5f893",
    "tokenizer_config.json": "8db7d46762f5d396",
    "NOTICE-WordNet.txt": "9e9652caea9cb960",
}


@pytest.mark.parametrize("name", SHA256)
def test_file_is_unchanged(name: str):
    assert hashlib.sha256((TINY_K3 / name).read_bytes()).hexdigest()[:16] == SHA256[name]


def test_index_names_every_shard_and_nothing_else():
    index = json.loads((TINY_K3 / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {p.name for p in TINY_K3.glob("model-*")}


def test_card_and_notice_accompany_the_weights():
    card = (TINY_K3 / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "NOTICE-WordNet.txt" in card
    assert "World English Bible" in card
