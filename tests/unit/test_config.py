"""config.json: what is accepted, and how everything else is refused."""

import copy
import dataclasses
import json
import warnings
from types import SimpleNamespace

import pytest

from kimi.assets import TINY_K3
from kimi.config import DraftConfig, ModelConfig
from kimi.errors import ConfigError
from kimi.models import open_tokenizer
from tests.conftest import DATA

TARGET = json.loads((TINY_K3 / "config.json").read_text())
DRAFT = json.loads((TINY_K3 / "dspark" / "config.json").read_text())
REMOVED = object()


def changed(data, path, value):
    """A deep copy with the field at `path` (dots) set or removed."""
    data = copy.deepcopy(data)
    *parents, last = path.split(".")
    node = data
    for name in parents:
        node = node[name]
    if value is REMOVED:
        del node[last]
    else:
        node[last] = value
    return data


def test_the_small_k3():
    config = ModelConfig.from_dict(TARGET)
    assert config.mla_layers == (3, 5) and config.kda_layers == (0, 1, 2, 4)  # 1-based on disk
    assert config.is_mla(3) and not config.is_mla(4)
    assert not config.is_moe(0) and config.is_moe(1)
    assert (config.rms_norm_eps, config.latent_norm_eps) == (1e-5, 1e-6)
    assert config.latent_cache_width == 192 and config.qk_head_dim == 192
    assert config.shared_intermediate_size == 256
    assert config.quantized_experts


def test_the_public_model_sizes():
    """Nothing is fixed to the small model: the published sizes pass too."""
    data = copy.deepcopy(TARGET)
    text = data["text_config"]
    text |= dict(
        vocab_size=163840, hidden_size=7168, num_hidden_layers=93, num_attention_heads=96,
        num_key_value_heads=96, intermediate_size=33792, attn_res_block_size=12,
        q_lora_rank=1536, kv_lora_rank=512, num_experts=896, num_experts_per_token=16,
        moe_intermediate_size=3072, routed_expert_hidden_size=3584,
        max_position_embeddings=1048576, bos_token_id=163584, eos_token_id=163586,
        pad_token_id=163839,
    )  # fmt: skip
    data |= dict(bos_token_id=163584, eos_token_id=163586, pad_token_id=163839)
    full = [*range(4, 93, 4), 93]
    text["linear_attn_config"] |= dict(
        num_heads=96,
        full_attn_layers=full,
        kda_layers=[i for i in range(1, 94) if i not in full],
    )
    config = ModelConfig.from_dict(data)
    assert len(config.mla_layers) == 24 and config.mla_layers[-2:] == (91, 92)
    assert config.kda.width == 12288 and config.latent_cache_width == 576


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig.from_dict(TARGET).vocab_size = 1  # type: ignore[misc]


T = "text_config."
L = T + "linear_attn_config."
W = T + "quantization_config.config_groups.group_0.weights."


@pytest.mark.parametrize(
    "path,value,message",
    [
        (T + "hidden_size", REMOVED, "hidden_size: expected a value, found nothing"),
        (T + "hidden_size", "256", "hidden_size: expected an integer, found '256'"),
        (T + "hidden_size", True, "hidden_size: expected an integer, found True"),
        (T + "num_experts", 0, "num_experts: expected an integer from 1 to 65536, found 0"),
        (T + "rms_norm_eps", 0, "rms_norm_eps: expected a number above 0, found 0"),
        (T + "rms_norm_eps", float("nan"), "rms_norm_eps: expected a finite number, found nan"),
        (T + "hidden_act", "silu", "hidden_act: expected 'situ' .*found 'silu'"),
        (T + "mla_use_nope", False, "mla_use_nope: expected True .*found False"),
        (T + "mla_use_nope", 1, "mla_use_nope: expected True .*found 1"),
        (T + "mla_use_output_gate", REMOVED, "mla_use_output_gate: expected a value"),
        (T + "moe_router_activation_func", "softmax", "expected 'sigmoid' .*found 'softmax'"),
        (T + "moe_renormalize", False, "moe_renormalize: expected True"),
        (T + "num_expert_group", 8, "num_expert_group: expected 1"),
        (T + "topk_method", "greedy", "topk_method: expected 'noaux_tc'"),
        (T + "num_nextn_predict_layers", 1, "num_nextn_predict_layers: expected 0"),
        (T + "rope_theta", "1e4", "rope_theta: expected a number, found '1e4'"),
        (T + "rope_parameters", {"rope_type": "yarn"}, "rope_parameters: rope_type: expected 'def"),
        (T + "head_dim", 7, r"head_dim: expected one of the sizes in this file \[32, .*found 7"),
        (
            T + "eos_token_id",
            [5],
            r"eos_token_id: expected the same value as at the top .*\(1794\)",
        ),
        (T + "eos_token_id", [1794, 1793], r"eos_token_id: expected the same value as at the top"),
        ("eos_token_id", [], r"eos_token_id: expected an id or a list of ids, found \[\]"),
        ("eos_token_id", [1794.0], "eos_token_id: expected an id or a list of ids"),
        ("eos_token_id", [True], "eos_token_id: expected an id or a list of ids"),
        (T + "quantization_config.quantization_status", "initialized", "quantization_status: expe"),
        (
            T + "quantization_config.transform_config",
            {"a": 1},
            "transform_config: expected no such",
        ),
        (
            T + "quantization_config.config_groups.group_0.format",
            "nvfp4",
            "group_0: format: expect",
        ),
        (W + "scale_dtype", "torch.bfloat16", "scale_dtype: expected 'torch.uint8' or"),
        (
            "quantization_config",
            {"quant_method": "fp8"},
            r"json\.quantization_config: quant_method",
        ),
        ("quantization_config", [4], "quantization_config: expected an object"),
        (T + "hidden_size", 10**400, "hidden_size: expected an integer of 64 bits, found"),
        (T + "num_experts", 10**9, "num_experts: expected an integer from 1 to 65536"),
        (T + "rms_norm_eps", 10**400, "rms_norm_eps: expected a finite number"),
        (T + "num_hidden_layers", 10**9, r"every layer .*\(not \[7, .*\] and 999999984 more\)"),
        (T + "rope_scaling", {"type": "yarn"}, "rope_scaling: expected no such field"),
        (T + "num_key_value_heads", 4, r"num_key_value_heads: expected num_attention_heads \(8\)"),
        (T + "num_experts_per_token", 33, r"num_experts_per_token: expected at most .*found 33"),
        (T + "first_k_dense_replace", 7, "first_k_dense_replace: expected at most 6"),
        (T + "moe_intermediate_size", 120, "moe_intermediate_size: expected a multiple of .*32"),
        (T + "model_type", "llama", "model_type: expected 'kimi_linear'"),
        ("model_type", "kimi_k2", "model_type: expected 'kimi_k3'"),
        ("tie_word_embeddings", True, "tie_word_embeddings: expected False"),
        ("eos_token_id", 5, r"eos_token_id: expected the same value as at the top .*\(5\)"),
        ("text_config", 5, "text_config: expected an object"),
        (T + "text", 5, None),
        (L + "gate_lower_bound", -6.0, r"gate_lower_bound: expected a number in \[-5, 0\)"),
        (L + "gate_lower_bound", 0, r"gate_lower_bound: expected a number in \[-5, 0\)"),
        (L + "use_full_rank_gate", False, "use_full_rank_gate: expected True"),
        (L + "kda_layers", [0, 2, 3, 5], "kda_layers: expected 1-based layer numbers from 1 to 6"),
        (L + "kda_layers", [1, 2, 3], r"kda_layers: expected every layer .*not \[5\]"),
        (L + "full_attn_layers", [4, 5, 6], r"no layer that kda_layers lists too \(\[5\]\)"),
        (L + "full_attn_layers", [4, 4, 6], "full_attn_layers: expected a list of distinct"),
        (T + "quantization_config.format", "nvfp4", "format: expected 'mxfp4-pack-quantized'"),
        (T + "quantization_config.kv_cache_scheme", {"x": 1}, "kv_cache_scheme: expected no such"),
        (W + "group_size", 16, "group_size: expected 32"),
        (W + "num_bits", 8, "num_bits: expected 4"),
        (W + "dynamic", True, "dynamic: expected False"),
        (T + "bos_token_id", 1793, "bos_token_id: expected the same value"),
    ],
)
def test_bad_fields_are_named(path, value, message):
    data = changed(TARGET, path, value)
    if message is None:  # an unknown field only warns
        with pytest.warns(UserWarning, match="does not know are ignored: text_config.text"):
            ModelConfig.from_dict(data)
        return
    with pytest.raises(ConfigError, match=message) as error:
        ModelConfig.from_dict(data)
    assert "\n" not in str(error.value)


def test_special_ids_must_be_in_the_vocabulary():
    data = changed(TARGET, T + "pad_token_id", 2048)
    data["pad_token_id"] = 2048
    with pytest.raises(ConfigError, match="pad_token_id: expected an id below vocab_size 2048"):
        ModelConfig.from_dict(data)


QUANTIZATION = TARGET["text_config"]["quantization_config"]


@pytest.mark.parametrize(
    "changes",
    [
        {T + "rope_theta": 10000.0},
        {T + "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {T + "rope_parameters": None, T + "rope_scaling": None},
        {T + "head_dim": 32},  # hidden_size / num_attention_heads
        {T + "head_dim": 192},  # qk_nope_head_dim + qk_rope_head_dim
        {"quantization_config": QUANTIZATION},
        {"quantization_config": QUANTIZATION, T + "quantization_config": REMOVED},
        {"quantization_config": QUANTIZATION, T + "quantization_config": None},
        {T + "quantization_config.quantization_status": "frozen"},
        {T + "quantization_config.sparsity_config": {}},
        {T + "quantization_config.config_groups.group_0.format": "mxfp4-pack-quantized",
         T + "quantization_config.format": REMOVED},
        {W + "scale_dtype": REMOVED},
        {W + "scale_dtype": "uint8"},
        {"eos_token_id": [1794], T + "eos_token_id": [1794]},
        {"eos_token_id": [1794], T + "eos_token_id": 1794},
        {"eos_token_id": [1794, 1794], T + "eos_token_id": None},
        {"image_placeholder": "<|kimi_image_placeholder|>", "flex_attention_backend": "triton"},
    ],
)  # fmt: skip
def test_harmless_differences_change_nothing_and_say_nothing(changes):
    data = TARGET
    for path, value in changes.items():
        data = changed(data, path, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ModelConfig.from_dict(data) == ModelConfig.from_dict(TARGET)


def test_all_ids_that_end_a_text():
    data = changed(changed(TARGET, "eos_token_id", [1794, 1793]), T + "eos_token_id", [1793, 1794])
    assert ModelConfig.from_dict(data).eos_token_id == (1794, 1793)
    with pytest.raises(ConfigError, match="eos_token_id: expected an id below vocab_size 2048, fo"):
        ModelConfig.from_dict(
            changed(changed(TARGET, "eos_token_id", [3, 2048]), T + "eos_token_id", None)
        )


def test_generation_ends_at_every_such_id():
    config = dataclasses.replace(ModelConfig.from_dict(TARGET), eos_token_id=(1794, 7))
    tokenizer = open_tokenizer(SimpleNamespace(path=TINY_K3, config=config))
    assert {1794, 7, tokenizer.special.eos, tokenizer.special.pad} == tokenizer.stop_ids


def test_unknown_fields_are_one_warning():
    data = changed(changed(changed(TARGET, "zebra", 1), T + "lion", 2), L + "newt", 3)
    with pytest.warns(UserWarning) as seen:
        ModelConfig.from_dict(data)
    (line,) = [str(w.message) for w in seen]
    assert line == (
        "config.json: fields that this library does not know are ignored: "
        "text_config.linear_attn_config.newt, text_config.lion, zebra"
    )


def test_dense_experts_need_no_quantization_config():
    data = changed(TARGET, T + "quantization_config", REMOVED)
    assert not ModelConfig.from_dict(data).quantized_experts


@pytest.mark.parametrize(
    "content,message",
    [
        (None, "no such file"),
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object, found list"),
        (b"\xff\xfe", "not valid JSON: not UTF-8 at byte 0"),
        ('{"a": {"b": [1, NaN]}}', "b: expected a finite number, found nan"),
        ('{"a": -Infinity}', "a: expected a finite number, found -inf"),
        ('{"a": 1e999}', "a: expected a finite number, found inf"),
        ('{"a": 1, "b": 2, "a": 1}', "'a' occurs twice"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON: Exceeds the limit"),
        ('{"a":' * 100_000, "not valid JSON: nested too deeply"),
        ("[" * 100_000, "not valid JSON: nested too deeply"),
        ("\ufeff{}", "not valid JSON: Unexpected UTF-8 BOM"),
        ("", "not valid JSON: Expecting value"),
    ],
)
def test_unreadable_files_are_named(tmp_path, content, message):
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ConfigError, match=rf"config\.json: .*{message}") as error:
        ModelConfig.from_dir(tmp_path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("data", [None, [], 3, "x"])
def test_what_is_no_object(data):
    for config in (ModelConfig, DraftConfig):
        with pytest.raises(ConfigError, match="config.json: expected a JSON object, found"):
            config.from_dict(data)


def test_drafters():
    config = DraftConfig.from_dict(DRAFT)
    assert config.sliding_window == 256 and config.causal_block and config.tap_width == 1280
    config.check_target(ModelConfig.from_dict(TARGET))
    full = DraftConfig.from_dir(DATA / "dspark_full")
    assert full.sliding_window is None and not full.causal_block


def test_no_known_config_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ModelConfig.from_dir(TINY_K3)
        ModelConfig.from_dir(DATA / "k3_tiny")
        for folder in (TINY_K3 / "dspark", DATA / "dspark_full", DATA / "dspark_sliding"):
            DraftConfig.from_dir(folder)


D = "transformer_layer_config."


def test_fields_of_drafters_have_the_defaults_of_their_schema():
    data = copy.deepcopy(DRAFT)
    for name in (
        "speculators_model_type", "markov_head_type", "enable_confidence_head", "block_size",
        "confidence_head_with_markov", "sample_from_anchor", "sliding_window_non_causal",
        "draft_vocab_size", "tie_word_embeddings",
    ):  # fmt: skip
        del data[name]
    for name in ("hidden_act", "rope_parameters", "attention_bias", "tie_word_embeddings"):
        del data["transformer_layer_config"][name]
    expected = DraftConfig.from_dict(DRAFT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DraftConfig.from_dict(data) == expected
        layer = data["transformer_layer_config"]
        for name in ("rms_norm_eps", "max_position_embeddings", "num_key_value_heads", "head_dim"):
            del layer[name]
        layer["num_attention_heads"] = 32
        del data["markov_rank"], layer["layer_types"], layer["use_sliding_window"]
        found = DraftConfig.from_dict(data)
    assert (found.rms_norm_eps, found.max_position_embeddings, found.rope_theta) == (
        1e-6,
        32768,
        1e4,
    )
    assert (found.num_key_value_heads, found.head_dim, found.markov_rank) == (32, 128, 256)
    assert found.sliding_window is None
    layer |= {"use_sliding_window": True, "max_window_layers": 0}
    del layer["sliding_window"]
    assert DraftConfig.from_dict(data).sliding_window == 4096


@pytest.mark.parametrize(
    "path,value,message",
    [
        ("speculators_model_type", "eagle3", "speculators_model_type: expected 'dspark'"),
        ("markov_head_type", "gated", "markov_head_type: expected 'vanilla'"),
        ("enable_confidence_head", False, "enable_confidence_head: expected True"),
        ("sample_from_anchor", False, "sample_from_anchor: expected True"),
        ("block_size", 1, "block_size: expected an integer from 2 to 2147483647, found 1"),
        ("mask_token_id", 2048, r"mask_token_id: expected an id below vocab_size \(2048\)"),
        ("aux_hidden_state_layer_ids", [], "aux_hidden_state_layer_ids: expected at least one"),
        ("aux_hidden_state_layer_ids", [1, 1], "expected a list of distinct integers"),
        ("draft_vocab_size", 100, "draft_vocab_size: expected the transformer's vocab_size"),
        (D + "hidden_act", "gelu", "hidden_act: expected 'silu'"),
        (D + "model_type", "llama", "model_type: expected 'qwen3'"),
        (D + "attention_bias", True, "attention_bias: expected False"),
        (D + "rope_parameters.rope_type", "yarn", "rope_type: expected 'default'"),
        (D + "rope_parameters.rope_theta", -1, "rope_theta: expected a number above 0"),
        (D + "rope_theta", 5.0, "rope_theta: expected the same value as in rope_parameters"),
        (D + "num_hidden_layers", 10**9, "num_hidden_layers: expected an integer from 1 to 1024"),
        (D + "layer_types", [["x"]] * 3, "layer_types: expected"),
        ("transformer_layer_config", REMOVED, "transformer_layer_config: expected a value"),
        (D + "layer_types", ["sliding_attention"] * 2, "layer_types: expected 3 times"),
        (
            D + "layer_types",
            ["sliding_attention", "full_attention", "full_attention"],
            "layer_types: expected 3 times one and the same kind",
        ),
        (D + "layer_types", ["chunked"] * 3, "expected 'full_attention' or 'sliding_attention'"),
        (D + "sliding_window", None, "sliding_window: expected an integer, as layer_types"),
        (D + "num_key_value_heads", 3, "num_key_value_heads: expected a divisor of 8"),
        (D + "head_dim", 63, "head_dim: expected an even number"),
    ],
)
def test_bad_drafter_fields_are_named(path, value, message):
    with pytest.raises(ConfigError, match=message):
        DraftConfig.from_dict(changed(DRAFT, path, value))


@pytest.mark.parametrize(
    "change,message",
    [
        ({"vocab_size": 4096}, "vocab_size: expected the target's 2048, found 4096"),
        ({"hidden_size": 128}, "hidden_size: expected the target's 256, found 128"),
        ({"aux_hidden_state_layer_ids": (1, 7)}, "expected ids from 0 to 6 .*found 7"),
    ],
)
def test_a_drafter_for_another_model_is_refused(change, message):
    drafter = dataclasses.replace(DraftConfig.from_dict(DRAFT), **change)
    with pytest.raises(ConfigError, match=message):
        drafter.check_target(ModelConfig.from_dict(TARGET))
