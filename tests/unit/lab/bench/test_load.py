"""The benchmark and its generated checkpoint, on small sizes."""

import json
import shutil
from types import SimpleNamespace

import pytest

from kimi.checkpoint import Checkpoint
from kimi.config import ModelConfig
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.lab.bench import load as bench
from kimi.lab.bench import synthetic
from kimi.lab.main import main
from kimi.loading.errors import LoadError
from kimi.loading.stream import Limits
from tests.packing.target import pack
from tests.unit.kernels.build import published
from tests.unit.loading.models import small_data


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated") / "m"
    data = synthetic.reduced(small_data(), 2, 32, 256)
    written = list(synthetic.generate(folder, data))
    assert written[-1] == synthetic.total_bytes(ModelConfig.from_dict(data))
    return folder


def test_a_generated_checkpoint_is_one(generated):
    checkpoint = Checkpoint(generated)
    assert checkpoint.problems() == []
    assert checkpoint.summary().total_bytes == synthetic.total_bytes(checkpoint.config)
    config = checkpoint.config
    assert config.num_hidden_layers == 2 and config.is_moe(0) and config.vocab_size == 256
    for name in checkpoint:  # all values are finite
        assert checkpoint[name].size
    layout = Layout(config, Mesh(1), ExpertFormat.FP8)
    assert pack(layout, dict(checkpoint), 0).experts.any()


def test_shards_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "SHARD_BYTES", 1 << 20)
    for _ in synthetic.generate(tmp_path / "m", synthetic.reduced(small_data(), 1, 32, 256)):
        pass
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    assert Checkpoint(tmp_path / "m").problems() == []


def test_generating_over_something_is_refused(generated):
    with pytest.raises(LoadError, match="model-00001.safetensors: cannot be written: File exists"):
        next(synthetic.generate(generated, synthetic.reduced(small_data(), 2, 32, 256)))


@pytest.mark.parametrize("form", ExpertFormat)
def test_figures(generated, form, monkeypatch):
    monkeypatch.setattr(bench, "_PASSES", 1)
    checkpoint = Checkpoint(generated)
    layout = Layout(checkpoint.config, Mesh(1), form)
    figures = bench.measure(checkpoint, layout, Limits(readers=1, workers=2))
    for name in ("disk", "cached", "copy", "read", "pack", "place", "cold", "warm"):
        assert getattr(figures, name) > 0, name
        assert figures.cpu[name] >= 0
    assert (figures.reencode > 0) == ("reencode" in figures.cpu) == (form is ExpertFormat.FP8)
    assert figures.source_bytes == synthetic.total_bytes(checkpoint.config)
    assert 0 < figures.share and figures.extra_bytes >= 0 and figures.threads == 2


def test_the_full_model_on_four_hosts():
    """By hand: a host reads a quarter of w1 and w3 and all of w2, half of the expert bytes."""
    config = published()
    layout = Layout(config, Mesh(32, 2), ExpertFormat.FP8)
    rate = dict.fromkeys(("disk", "cached", "copy", "read", "reencode", "cold", "warm"), 1e9)
    figures = bench.Figures(
        source_bytes=10, destination_bytes=20, pack=1e9, place=1e9, extra_bytes=0, bound_bytes=0,
        threads=2, cpu={}, **rate,
    )  # fmt: skip
    found = bench.estimate(figures, config, layout, 4, 5e9, 100)
    experts = 92 * 896 * 3 * 3072 * 3584 * 17 // 32
    assert abs(found.read_bytes - experts / 2) < 0.05 * experts
    assert found.destination_bytes == bench.rank_bytes(layout) * 8
    assert found.read_s == found.read_bytes / 5e9
    assert found.pack_s == pytest.approx(found.packed_bytes / 50e9)
    assert found.place_s == pytest.approx(found.destination_bytes / 100e9)
    assert found.seconds == max(found.read_s, found.pack_s, found.place_s)


@pytest.fixture
def small_config(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "_PASSES", 1)
    data = small_data()
    data["text_config"] |= dict(moe_intermediate_size=512)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data))
    return path


def test_the_command(small_config, tmp_path, capsys):
    argv = ["bench-load", "--dir", str(tmp_path), "--gb", "0.005", "--mesh", "1", "--config",
            str(small_config), "--memory", "0.1"]  # fmt: skip
    assert main([*argv, "--keep"]) == 0
    text = capsys.readouterr().out
    for part in ("disk: files, not cached", "re-encode and layout", "slower bound", "4 hosts"):
        assert part in text
    kept = [p for p in tmp_path.iterdir() if p.is_dir()]
    assert len(kept) == 1
    assert main([*argv, "--keep", "--json", "--host-cores", "64", "--host-disk", "5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["share"] > 0 and report["estimate"]["hosts"] == 4
    assert main([*argv, "--json"]) == 0
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == kept


@pytest.mark.parametrize(
    "options, message",
    [
        (["--dir", "/no/such"], "--dir: expected a folder, found no /no/such"),
        (["--workers", "0"], "workers: expected at least 1, found 0"),
        (["--mesh", "1", "--gb", "0.001"], "bytes free, found 99"),
    ],
)
def test_bad_options(small_config, tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=99))
    argv = ["bench-load", "--dir", str(tmp_path), "--config", str(small_config), *options]
    assert main(argv) == 2
    assert message in capsys.readouterr().err
