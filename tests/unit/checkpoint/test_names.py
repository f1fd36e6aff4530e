"""The table of tensors against the published figures and the shipped models."""

import copy
import math

import pytest

from kimi.assets import TINY_K3
from kimi.checkpoint import Checkpoint, DraftCheckpoint, names
from kimi.config import DraftConfig, ModelConfig
from tests.conftest import DATA
from tests.unit.checkpoint.build import DRAFT, small_target

# Stored as F32 in the published checkpoint; everything else that is a float is BF16.
PUBLISHED_F32 = ("conv1d.weight", "A_log", "dt_bias", "o_norm.weight", "e_score_correction_bias")


def published_bytes(name, spec):
    if name.endswith(".A_log"):
        return 128 * 4
    size = math.prod(spec.shapes[0])
    if spec.dtypes[0] == "U8":
        return size
    return size * (4 if name.endswith(PUBLISHED_F32) else 2)


def test_the_published_target_to_the_byte():
    tensors = names.target_tensors(ModelConfig.published(), ())
    sizes = {name: published_bytes(name, spec) for name, spec in tensors.items()}
    assert len(sizes) == 497_052
    assert sum(sizes.values()) == 1_559_965_606_912
    experts = sum(size for n, size in sizes.items() if tensors[n].family == "experts")
    assert experts == 1_446_456_066_048

    def layer(i):
        return sum(size for n, size in sizes.items() if f".layers.{i}." in n)

    assert (layer(0), layer(1), layer(3)) == (2_341_213_184, 16_990_092_800, 16_566_684_160)


def test_the_published_drafter_to_the_element():
    data = copy.deepcopy(DRAFT)
    data |= dict(
        aux_hidden_state_layer_ids=[24, 48, 72, 88, 92], markov_rank=256, draft_vocab_size=163840
    )
    data["transformer_layer_config"] |= dict(
        vocab_size=163840, hidden_size=7168, intermediate_size=14336, num_hidden_layers=5,
        num_attention_heads=96, num_key_value_heads=16, head_dim=64,
        layer_types=["sliding_attention"] * 5,
    )  # fmt: skip
    tensors = names.draft_tensors(DraftConfig.from_dict(data), names.DRAFT_OPTIONAL)
    assert sum(math.prod(spec.shapes[0]) for spec in tensors.values()) == 4_744_900_481


@pytest.mark.parametrize("folder", [TINY_K3, DATA / "k3_tiny"])
def test_real_targets_hold_exactly_the_expected_names(folder):
    checkpoint = Checkpoint.open(folder)
    assert set(checkpoint.shards.files) == set(checkpoint.specs)


@pytest.mark.parametrize("folder", [TINY_K3 / "dspark", DATA / "dspark_full"])
def test_real_drafters_hold_the_expected_names(folder):
    draft = DraftCheckpoint.open(folder)
    extra = set(draft.shards.files) - set(draft.specs)
    assert set(draft.specs) <= set(draft.shards.files)
    assert extra <= {"verifier_lm_head.weight", "verifier_norm.weight"}


def test_presence_of_weight_packed_tells_packed_from_dense():
    config = ModelConfig.from_dict(small_target())
    stem = "language_model.model.layers.1.block_sparse_moe.experts."
    present = {f"{stem}0.w1.weight", f"{stem}1.w1.weight_packed", f"{stem}1.w1.weight"}
    tensors = names.target_tensors(config, present)
    assert f"{stem}0.w1.weight" in tensors and f"{stem}0.w1.weight_packed" not in tensors
    assert f"{stem}1.w1.weight_packed" in tensors and f"{stem}1.w1.weight" not in tensors
    assert f"{stem}0.w2.weight_scale" in tensors  # neither is there: the config decides
    assert tensors[f"{stem}0.w1.weight"].shapes == ((32, 64),)
    assert tensors[f"{stem}0.w2.weight_packed"].shapes == ((64, 16),)
    assert tensors[f"{stem}0.w2.weight_scale"].shapes == ((64, 1),)


def test_an_unquantised_config_expects_dense_experts():
    data = small_target()
    del data["text_config"]["quantization_config"]
    tensors = names.target_tensors(ModelConfig.from_dict(data), ())
    assert not any("weight_packed" in name for name in tensors)


@pytest.mark.parametrize(
    ("shape", "allowed"),
    [
        ((5,), True),
        ((8,), True),
        ((1, 1, 5, 1), True),
        ((4,), False),
        ((1, 1, 8, 1), False),
        ((5, 1), False),
        ((), False),
    ],
)
def test_forms_of_a_log(shape, allowed):
    tensors = names.target_tensors(ModelConfig.from_dict(small_target()), ())
    spec = tensors["language_model.model.layers.0.self_attn.A_log"]
    assert spec.allows(shape) == allowed
    assert spec.expected() == "[5] or [1, 1, 5, 1] or longer"


def test_only_a_log_may_be_longer():
    tensors = names.target_tensors(ModelConfig.from_dict(small_target()), ())
    padded = [name for name, spec in tensors.items() if spec.padded]
    assert padded == ["language_model.model.layers.0.self_attn.A_log"]
    assert not tensors["language_model.model.norm.weight"].allows((25,))


@pytest.mark.parametrize(
    ("name", "skipped"),
    [
        ("vision_tower.encoder.blocks.0.wqkv.weight", True),
        ("mm_projector.proj.0.weight", True),
        ("language_model.vision_tower.x", True),
        ("model.vision_tower.x", True),
        ("language_model.model.norm.weight", False),
        ("language_model.model.layers.0.vision_tower.x", False),
    ],
)
def test_vision_tensors_are_skipped(name, skipped):
    assert names.is_skipped_target(name) == skipped
