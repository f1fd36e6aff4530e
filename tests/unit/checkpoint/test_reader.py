"""Opening, checking and reading whole checkpoints."""

import json

import ml_dtypes
import numpy as np
import pytest

from kimi.assets import TINY_K3
from kimi.checkpoint import Checkpoint, DraftCheckpoint
from kimi.errors import CheckpointError, ConfigError, InputError
from tests.conftest import DATA
from tests.unit.checkpoint import build

PREFIX = "language_model.model.layers."
A_LOG = f"{PREFIX}0.self_attn.A_log"
CONV = f"{PREFIX}0.self_attn.q_conv1d.weight"
NORM = "language_model.model.norm.weight"
FIRST = f"{PREFIX}1.block_sparse_moe.experts.0.w1.weight_packed"
EXPERT = f"{PREFIX}1.block_sparse_moe.experts.1."


class Model:
    """A small checkpoint of two shards in a folder, to be edited and then opened."""

    def __init__(self, path):
        self.path = path
        self.config = build.small_target()
        tensors = build.target_tensors(self.config)
        self.shards = {
            "a.safetensors": {n: v for n, v in tensors.items() if ".layers.1." not in n},
            "b.safetensors": {n: v for n, v in tensors.items() if ".layers.1." in n},
        }

    def holder(self, name):
        return next(tensors for tensors in self.shards.values() if name in tensors)

    def put(self, name, value):
        self.holder(name)[name] = value

    def write(self):
        return build.write_folder(self.path, self.config, self.shards)

    def open(self):
        return Checkpoint.open(self.write())


@pytest.fixture
def model(tmp_path):
    return Model(tmp_path / "model")


def only_problem(checkpoint):
    (problem,) = checkpoint.problems()
    with pytest.raises(CheckpointError) as caught:
        checkpoint.check()
    message = str(caught.value)
    assert message.endswith(problem) and message.startswith(str(checkpoint.path))
    assert message.count(str(checkpoint.path)) == 1
    return problem


@pytest.mark.parametrize("folder", [TINY_K3, DATA / "k3_tiny"])
def test_real_targets_pass_and_read(folder):
    checkpoint = Checkpoint.open(folder)
    checkpoint.check()
    assert len(checkpoint) == len(list(checkpoint)) == len(checkpoint.specs)
    for name in checkpoint:
        assert checkpoint[name].shape == checkpoint.specs[name].shapes[0]


@pytest.mark.parametrize("folder", [TINY_K3 / "dspark", DATA / "dspark_full"])
def test_real_drafters_pass_and_read(folder):
    draft = DraftCheckpoint.open(folder)
    draft.check()
    for name in draft:
        assert draft[name].shape == draft.specs[name].shapes[0]


def test_the_small_model_passes(model):
    model.open().check()


def test_a_single_file_needs_no_index(model, tmp_path):
    model.shards = {
        "model.safetensors": model.shards["a.safetensors"] | model.shards["b.safetensors"]
    }
    path = model.write()
    (path / build.INDEX).unlink()
    checkpoint = Checkpoint.open(path)
    checkpoint.check()
    assert checkpoint.summary().rows[0].shard == "model.safetensors"


def test_names_work_with_and_without_their_prefix(model):
    checkpoint = model.open()
    assert NORM in checkpoint and "model.norm.weight" in checkpoint
    assert np.shares_memory(checkpoint[NORM], checkpoint["model.norm.weight"])


def test_a_text_only_export_is_read_under_the_same_names(model):
    for file, tensors in model.shards.items():
        model.shards[file] = {n.removeprefix("language_model."): v for n, v in tensors.items()}
    checkpoint = model.open()
    checkpoint.check()
    assert checkpoint[NORM].shape == (24,)
    assert checkpoint[FIRST].shape == (32, 32)


@pytest.mark.parametrize(
    ("stem", "head"),
    [
        ("language_model.", "language_model.lm_head.weight"),
        ("language_model.", "lm_head.weight"),
        ("model.language_model.", "lm_head.weight"),
        ("", "lm_head.weight"),
    ],
)
def test_other_spellings_are_read_under_the_same_names(model, stem, head):
    def spelled(name):
        if name == "language_model.lm_head.weight":
            return head
        return stem + name.removeprefix("language_model.model.")

    for file, tensors in model.shards.items():
        model.shards[file] = {spelled(name): value for name, value in tensors.items()}
    model.shards["c.safetensors"] = {"model.vision_tower.x": np.ones(3, np.float32)}
    checkpoint = model.open()
    checkpoint.check()
    for name in (NORM, "model.norm.weight", f"{stem}norm.weight"):
        assert checkpoint[name].shape == (24,)
    assert checkpoint["lm_head.weight"].shape == checkpoint["language_model.lm_head.weight"].shape
    assert checkpoint[FIRST].shape == (32, 32)
    del model.shards["a.safetensors"][f"{stem}layers.0.input_layernorm.weight"]
    assert only_problem(model.open()).startswith(f"{stem}layers.0.input_layernorm.weight: missing")


def test_an_unknown_name_is_a_key_error_as_in_any_mapping(model):
    checkpoint = model.open()
    assert "nothing" not in checkpoint and checkpoint.get("nothing") is None
    with pytest.raises(KeyError):
        checkpoint["nothing"]


def test_vision_tensors_are_not_the_models(model):
    model.shards["c.safetensors"] = {
        "vision_tower.x": np.ones(3, np.float32),
        "mm_projector.y": np.ones(3, np.float32),
    }
    checkpoint = model.open()
    checkpoint.check()
    assert "vision_tower.x" not in checkpoint and "vision_tower.x" not in list(checkpoint)
    assert checkpoint.summary().bytes_by_family["not used"] == 24


def test_a_missing_tensor(model):
    del model.holder(NORM)[NORM]
    assert only_problem(model.open()) == f"{NORM}: missing: expected BF16 or F32 [24]"


def test_an_incomplete_expert(model):
    del model.holder(EXPERT + "w2.weight_scale")[EXPERT + "w2.weight_scale"]
    checkpoint = model.open()
    assert only_problem(checkpoint).startswith(f"{EXPERT}w2.weight_scale: missing: expected U8")
    with pytest.raises(CheckpointError, match="experts.1.w2.weight_scale: missing"):
        checkpoint.stored_name(EXPERT + "w2.weight_scale")


def test_a_tensor_too_many(model):
    model.shards["b.safetensors"]["other.weight"] = np.zeros(3, np.float32)
    assert only_problem(model.open()) == "other.weight: no tensor of this model"


def test_an_expert_that_is_both_packed_and_dense(model):
    name = EXPERT + "w1.weight"
    model.shards["b.safetensors"][name] = np.zeros((32, 64), np.float32)
    assert only_problem(model.open()) == f"{name}: no tensor of this model"


def test_a_wrong_shape(model):
    model.put(NORM, np.zeros(23, np.float32))
    checkpoint = model.open()
    assert only_problem(checkpoint) == f"{NORM}: expected shape [24], found [23]"
    with pytest.raises(CheckpointError, match=r"expected shape \[24\], found \[23\]"):
        checkpoint[NORM]


@pytest.mark.parametrize(
    ("name", "value", "expected", "found"),
    [
        (NORM, np.zeros(24, np.float16), "BF16 or F32", "F16"),
        (NORM, np.zeros(24, np.uint8), "BF16 or F32", "U8"),
        (NORM, np.zeros(24, np.float64), "BF16 or F32", "F64"),
        (EXPERT + "w1.weight_packed", np.zeros((32, 32), np.float32), "U8", "F32"),
        (EXPERT + "w1.weight_scale", np.zeros((32, 2), np.int32), "U8 or F8_E8M0", "I32"),
    ],
)
def test_a_wrong_dtype(model, name, value, expected, found):
    model.put(name, value)
    checkpoint = model.open()
    assert only_problem(checkpoint) == f"{name}: expected dtype {expected}, found {found}"
    with pytest.raises(CheckpointError, match="expected dtype"):
        checkpoint[name]


def test_in_the_index_but_not_in_the_file(model):
    path = model.write()
    del model.holder(NORM)[NORM]
    build.write_file(path / "a.safetensors", model.shards["a.safetensors"])
    checkpoint = Checkpoint.open(path)
    message = f"{NORM}: expected in a.safetensors, as the index says, found no such tensor"
    assert only_problem(checkpoint) == message
    with pytest.raises(CheckpointError, match="as the index says"):
        checkpoint[NORM]


def test_in_the_file_but_not_in_the_index(model):
    path = model.write()
    model.shards["a.safetensors"]["other"] = np.zeros(1, np.uint8)
    build.write_file(path / "a.safetensors", model.shards["a.safetensors"])
    problem = only_problem(Checkpoint.open(path))
    assert problem == "other: in a.safetensors, but not in the index"


def test_in_another_file_than_the_index_says(model):
    path = model.write()
    model.shards["b.safetensors"][NORM] = model.shards["a.safetensors"][NORM]
    build.write_file(path / "b.safetensors", model.shards["b.safetensors"])
    problem = only_problem(Checkpoint.open(path))
    assert problem == f"{NORM}: in b.safetensors, but the index says a.safetensors"


def test_a_missing_shard_is_one_problem(model):
    path = model.write()
    (path / "b.safetensors").unlink()
    checkpoint = Checkpoint.open(path)
    assert only_problem(checkpoint) == f"{path / 'b.safetensors'}: no such file"
    assert checkpoint[NORM].shape == (24,)  # the other shard can be read all the same
    with pytest.raises(CheckpointError, match="no such file"):
        checkpoint[FIRST]


def test_a_truncated_shard_is_one_problem(model):
    path = model.write()
    data = (path / "b.safetensors").read_bytes()
    (path / "b.safetensors").write_bytes(data[:-5])
    assert "b.safetensors: truncated: expected" in only_problem(Checkpoint.open(path))


@pytest.mark.parametrize("size", [7, 7.0])
def test_a_wrong_total_size(model, size):
    path = model.write()
    build.edit_index(path, lambda index: index["metadata"].update(total_size=size))
    problem = only_problem(Checkpoint.open(path))
    assert problem.startswith("expected 7 bytes of tensors, as the index says, found ")


def test_an_index_without_total_size_passes(model):
    path = model.write()
    build.edit_index(path, lambda index: index.pop("metadata"))
    Checkpoint.open(path).check()
    build.edit_index(path, lambda index: index.update(metadata=None))
    Checkpoint.open(path).check()


def test_total_size_may_be_a_whole_float(model):
    path = model.write()
    whole = Checkpoint.open(path).shards.total_size
    build.edit_index(path, lambda index: index["metadata"].update(total_size=float(whole)))
    Checkpoint.open(path).check()
    build.edit_index(path, lambda index: index["metadata"].update(total_size=whole + 0.5))
    with pytest.raises(CheckpointError, match=r"total_size: expected an integer, found \d+\.5"):
        Checkpoint.open(path)


@pytest.mark.parametrize("path", ["", None, 5, b"x", ["x"]])
def test_what_is_no_path(path):
    with pytest.raises(InputError, match="model: expected a path or a hub id, found"):
        Checkpoint.open(path)


def test_a_path_that_no_file_system_has():
    with pytest.raises(CheckpointError, match="expected a folder or a hub repository"):
        Checkpoint.open("x" * 5000)


def test_many_problems_are_counted_and_the_first_ten_listed(model):
    shard = model.shards["a.safetensors"]
    for i in range(12):
        shard[f"other{i}"] = np.zeros(1, np.uint8)
    checkpoint = model.open()
    assert len(checkpoint.problems()) == 12
    with pytest.raises(CheckpointError) as caught:
        checkpoint.check()
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{checkpoint.path}: 12 problems:"
    assert len(lines) == 12 and lines[-1] == "  and 2 more"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "weight_map: expected an object"),
        ('{"weight_map": {}}', "weight_map: expected an object"),
        ('{"weight_map": ["a"]}', "weight_map: expected an object"),
        ('{"weight_map": {"x": "../a.safetensors"}}', "x: expected the name of a file in this"),
        ('{"weight_map": {"x": 3}}', "x: expected the name of a file in this folder, found 3"),
        ('{"weight_map": {"x": "a"}, "metadata": {"total_size": "7"}}', "total_size: expected an"),
        ('{"weight_map": {"x": "a"}, "metadata": 7}', "metadata: expected an object, found 7"),
        ('{"weight_map": {"x": "a"}, "metadata": {"total_size": NaN}}', "expected a finite numb"),
        ('{"weight_map": {"x": "a"}, "metadata": {"total_size": true}}', "total_size: expected a"),
        ('{"weight_map": {"x": "a", "x": "b"}}', "'x' occurs twice"),
        ('{"weight_map": {"x\\ny": "a"}}', r"'x\\ny': expected a printable name"),
        ('{"weight_map": {"x": "\\u0000"}}', "x: expected the name of a file in this folder"),
        ('{"weight_map": {"x": "\\ud800"}}', "x: expected the name of a file in this folder"),
    ],
)
def test_a_malformed_index(model, content, message):
    path = model.write()
    (path / build.INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        Checkpoint.open(path)
    assert str(path / build.INDEX) in str(caught.value)


def test_a_folder_without_weights(model):
    path = model.write()
    (path / build.INDEX).unlink()
    with pytest.raises(CheckpointError, match="expected model.safetensors.index.json or model.saf"):
        Checkpoint.open(path)


def test_a_folder_without_config(model):
    path = model.write()
    (path / "config.json").unlink()
    with pytest.raises(ConfigError, match="config.json: no such file"):
        Checkpoint.open(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite(model, bad):
    value = np.zeros((40, 1, 4), np.float32)
    value[7, 0, 2] = bad
    model.put(CONV, value)
    checkpoint = model.open()
    checkpoint.check()  # does not read data
    with pytest.raises(CheckpointError, match=rf"{CONV}: .* found {bad} at index \[7, 0, 2\]"):
        checkpoint[CONV]


@pytest.mark.parametrize("shape", [(40, 1, 4), (40, 4)])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_convolutions_of_either_rank_and_dtype(model, shape, dtype):
    values = np.arange(160).reshape(shape).astype(dtype)
    model.put(CONV, values)
    checkpoint = model.open()
    checkpoint.check()
    assert checkpoint[CONV].dtype == dtype
    assert np.array_equal(checkpoint[CONV], values.reshape(40, 1, 4))


@pytest.mark.parametrize("shape", [(5,), (1, 1, 5, 1), (8,)])
def test_a_log_is_narrowed_to_the_heads(model, shape):
    values = np.zeros(shape, np.float32)
    values.reshape(-1)[:5] = [1, 2, 3, 4, 5]
    model.put(A_LOG, values)
    checkpoint = model.open()
    checkpoint.check()
    assert checkpoint[A_LOG].tolist() == [1, 2, 3, 4, 5]


def test_a_log_with_more_than_zeros_behind_the_heads_warns(model):
    model.put(A_LOG, np.arange(8, dtype=np.float32))
    checkpoint = model.open()
    with pytest.warns(UserWarning, match="A_log: expected zeros beyond the first 5 values"):
        assert checkpoint[A_LOG].tolist() == [0, 1, 2, 3, 4]


def test_warnings_of_all_layers_are_one_line(tmp_path):
    model = Model(tmp_path / "m")
    model.config["text_config"] |= dict(num_hidden_layers=4)
    model.config["text_config"]["linear_attn_config"] |= dict(kda_layers=[1, 3, 4])
    tensors = build.target_tensors(model.config)
    odd = [f"{PREFIX}{i}.self_attn.A_log" for i in (0, 2, 3)]
    tensors |= dict.fromkeys(odd, np.arange(8, dtype=np.float32))
    model.shards = {"a.safetensors": tensors}
    checkpoint = model.open()
    with pytest.warns(UserWarning) as seen:
        for name in reversed(odd):
            assert checkpoint[name].tolist() == [0, 1, 2, 3, 4]
    (line,) = [str(w.message) for w in seen]
    assert line.startswith(f"{checkpoint.path}: {odd[0]} and 2 more: expected zeros beyond")


def test_packed_and_dense_experts(model):
    packed = np.full((32, 32), 0x22, np.uint8)
    model.put(EXPERT + "w1.weight_packed", packed)
    shard = model.shards["b.safetensors"]
    del shard[EXPERT + "w3.weight_packed"], shard[EXPERT + "w3.weight_scale"]
    shard[EXPERT + "w3.weight"] = np.full((32, 64), 3, ml_dtypes.bfloat16)
    checkpoint = model.open()
    checkpoint.check()
    assert np.array_equal(checkpoint[EXPERT + "w1.weight_packed"], packed)
    assert (checkpoint[EXPERT + "w1.weight_scale"] == 127).all()
    dense = checkpoint[EXPERT + "w3.weight"]
    assert dense.dtype == ml_dtypes.bfloat16 and (dense == 3).all()


def test_summary_adds_up(model):
    checkpoint = model.open()
    summary = checkpoint.summary()
    assert len(summary.rows) == len(checkpoint)
    row = next(row for row in summary.rows if row.name == EXPERT + "w2.weight_packed")
    assert (row.shape, row.dtype, row.nbytes) == ((64, 16), "U8", 1024)
    assert (row.family, row.shard) == ("experts", "b.safetensors")
    assert sum(summary.bytes_by_family.values()) == summary.total_bytes
    index = json.loads((checkpoint.path / build.INDEX).read_text())
    assert summary.total_bytes == index["metadata"]["total_size"]
    sizes = list(summary.bytes_by_family.values())
    assert sizes == sorted(sizes, reverse=True)


def test_a_drafter_without_embedding_and_head_uses_the_targets(tmp_path):
    tensors = build.draft_tensors(build.DRAFT)
    for name in ("embed_tokens.weight", "lm_head.weight"):
        del tensors[name]
    build.write_folder(tmp_path / "d", build.DRAFT, {"model.safetensors": tensors})
    draft, target = DraftCheckpoint.open(tmp_path / "d"), Checkpoint.open(TINY_K3)
    draft.check()
    embedding = draft.shared("embed_tokens.weight", target)
    assert np.array_equal(embedding, target["model.embed_tokens.weight"])
    assert np.array_equal(draft.shared("lm_head.weight", target), target["lm_head.weight"])


def test_a_drafter_prefers_its_own_embedding():
    draft, target = DraftCheckpoint.open(DATA / "dspark_full"), Checkpoint.open(DATA / "k3_tiny")
    own = draft.shared("embed_tokens.weight", target)
    assert np.shares_memory(own, draft["embed_tokens.weight"])


def test_a_drafter_checks_its_other_names(tmp_path):
    tensors = build.draft_tensors(build.DRAFT)
    del tensors["fc.weight"]
    tensors["verifier_norm.weight"] = np.zeros(3, np.float32)
    build.write_folder(tmp_path / "d", build.DRAFT, {"model.safetensors": tensors})
    problem = only_problem(DraftCheckpoint.open(tmp_path / "d"))
    assert problem == "fc.weight: missing: expected BF16 or F32 [256, 1280]"
