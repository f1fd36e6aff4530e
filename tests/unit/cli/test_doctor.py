"""`doctor`: what it finds on machines that are fit and on machines that are not."""

import importlib.metadata
import json
import os
import re
import shutil
from dataclasses import dataclass

import pytest

from kimi.assets import TINY_K3
from kimi.checkpoint import Checkpoint
from kimi.cli import checks
from kimi.cli.main import main
from kimi.config import ModelConfig
from kimi.errors import InputError
from kimi.kernels.chip import TPU_V7
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh, default_mesh

MESH = Mesh(32)


@dataclass
class Core:
    """A TPU core, as far as the checks look at it."""

    coords: tuple[int, int, int]
    core_on_chip: int
    process_index: int
    platform: str = "tpu"
    device_kind: str = "TPU7x"
    limit: int = TPU_V7.hbm_bytes

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": self.limit, "bytes_in_use": 0}


def cores(ranks: int = 32) -> list[Core]:
    """The slice, or its beginning."""
    coordinates = (MESH.coordinates(rank) for rank in range(ranks))
    return [Core((x, y, z), core, process_index=z) for x, y, z, core in coordinates]


def doctor(capsys, *argv) -> dict[str, dict]:
    code = main(["doctor", "--json", *map(str, argv)])
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert code == (0 if report["good"] else 2)
    failed = [c["check"] for c in report["checks"] if c["good"] is False]
    assert report["good"] is not bool(failed)
    assert all(bool(c["remedy"]) is (c["good"] is False) for c in report["checks"])
    expected = f"checks failed: {', '.join(failed)}\n" if failed else ""
    assert captured.err.endswith(expected) and captured.err.count("\n") == bool(failed)
    return {c["check"]: c for c in report["checks"]}


def test_this_machine_can_run_the_small_k3(capsys):
    found = doctor(capsys)
    assert {name for name, c in found.items() if c["good"]} == {
        "versions", "devices", "model", "drafter", "disk", "clock",
    }  # fmt: skip
    assert all(found[name]["good"] is None for name in ("topology", "hbm", "mesh"))


def test_text_for_people(capsys):
    assert main(["doctor", "--ranks", "32", "--model", "/no/such"]) == 2
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    index = next(i for i, line in enumerate(lines) if line.startswith("FAILED devices"))
    assert "expected 32 TPU cores" in lines[index] and "-> run on a TPU host" in lines[index + 1]
    assert captured.err == "error: host 0: 2 of 7 checks failed: devices, model\n"


def test_packages_of_other_versions(monkeypatch):
    version = importlib.metadata.version
    old = {"jax": "0.4.1", "rich": None}

    def other(name):
        if name in old and old[name] is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return old.get(name) or version(name)

    monkeypatch.setattr(importlib.metadata, "version", other)
    found = checks.versions()
    assert not found.good and "found 0.4.1" in found.found
    assert "expected jaxlib 0.4.1, as jax" in found.found
    assert "expected rich>=14, found not installed" in found.found


def test_an_uninstalled_library(monkeypatch):
    monkeypatch.setattr(checks, "DISTRIBUTION", "no-such-distribution")
    assert checks.versions().good is False


@pytest.mark.parametrize(
    "ranks, count, good", [(None, 32, True), (None, 24, False), (32, 32, True), (32, 8, False)]
)
def test_devices(ranks, count, good):
    finding, found = checks.devices(lambda: cores(count), ranks)
    assert finding.good is good and len(found) == count
    assert finding.found.startswith(f"{count} x TPU7x (tpu) on {count // 8} host")


def test_a_tpu_in_use():
    def busy():
        raise InputError("The TPU is already in use by process 7")

    finding, found = checks.devices(busy, None)
    assert finding.found == "The TPU is already in use by process 7" and not found
    assert "libtpu_lockfile" in finding.remedy


@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_the_slice_in_any_order(ranks):
    assert checks.topology(cores(ranks)[::-1]).good


@pytest.mark.parametrize(
    "change",
    [
        lambda c: setattr(c[0], "coords", (2, 0, 0)),
        lambda c: setattr(c[5], "coords", (0, 0, 4)),
        lambda c: setattr(c[5], "core_on_chip", 0),  # one core a chip, or two in one
        lambda c: setattr(c[9], "process_index", 2),  # a host with cores of two z
        lambda c: [setattr(core, "process_index", 0) for core in c],
    ],
)
def test_other_topologies(change):
    found = cores()
    change(found)
    assert checks.topology(found).good is False


def test_weights_that_fit_and_that_do_not(tiny):
    layout = Layout(tiny.config, default_mesh(tiny.config, 2), ExpertFormat("mxfp4"))
    assert checks.hbm(cores(2), layout).good
    assert checks.hbm(cores(2), None).good is None
    found = cores(2)
    found[1].limit = checks.HBM_RESERVE_BYTES
    assert checks.hbm(found, layout).good is False


def test_the_published_model_fits_the_slice():
    config = ModelConfig.published()
    finding, layout = checks.division(config, 32, "mxfp4")
    assert finding.good and finding.found == "32 ranks: TP16xEP2"
    assert checks.hbm(cores(), layout).good


def test_a_model_that_cannot_be_divided(tiny):
    finding, layout = checks.division(tiny.config, 32, "mxfp4")
    assert finding.good is False and layout is None and "multiple of 32 ranks" in finding.found


@pytest.fixture
def broken(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(TINY_K3, folder, copy_function=os.symlink)
    return folder


def test_a_missing_shard(capsys, broken):
    (broken / "model-00002-of-000007.safetensors").unlink()
    found = doctor(capsys, "--model", broken)
    assert "model-00002-of-000007.safetensors" in found["model"]["found"]


def test_a_drafter_that_is_cut_off(capsys, broken):
    file = broken / "dspark" / "model.safetensors"
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(whole[:-5])
    found = doctor(capsys, "--model", broken)
    assert found["drafter"]["good"] is False and found["model"]["good"]


def test_a_model_without_a_drafter(capsys, broken):
    shutil.rmtree(broken / "dspark")
    assert doctor(capsys, "--model", broken)["drafter"]["good"] is None
    found = doctor(capsys, "--model", broken, "--draft-model", "/no/such")
    assert found["drafter"]["good"] is False


def test_a_repository_of_the_hub_is_not_downloaded(capsys, monkeypatch, tmp_path):
    import huggingface_hub

    def never(*unused, **options):
        raise AssertionError("a download")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", never)
    assert "hf download a/b" in doctor(capsys, "--model", "a/b")["model"]["remedy"]

    def cached(name, file, revision):
        return str(TINY_K3 / file) if (name, revision) == ("a/b", "v1") else None

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    assert doctor(capsys, "--model", "a/b@v1")["model"]["good"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("doctor") / "store"
    options = ["--model", str(TINY_K3), "--mesh", "2", "--experts", "fp8"]
    assert main(["preshard", "--out", str(path), *options]) == 0
    return path


def test_a_store(capsys, store):
    found = doctor(capsys, "--store", store, "--experts", "fp8")
    assert found["store"]["good"] and "model" not in found
    assert doctor(capsys, "--store", store, "--experts", "fp8", "--model", TINY_K3)["store"]["good"]


@pytest.mark.parametrize(
    "ranks, experts, hosts, message",
    [
        (32, "fp8", 4, "mesh: expected 32 ranks, found 2"),
        (2, "mxfp4", 4, "experts: expected mxfp4, found fp8"),
        (2, "fp8", 4, "layer-001.safetensors: expected [0-9]+ bytes, found 3"),
    ],
)
def test_stores_that_do_not_fit(store, tmp_path, ranks, experts, hosts, message):
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    (copy / "rank-01" / "layer-001.safetensors").write_bytes(b"abc")
    finding, layout = checks.store(copy, None, ranks, experts, range(hosts))
    assert finding.good is False and layout is None
    assert "preshard" in finding.remedy
    assert re.search(message, finding.found), finding.found


def test_a_host_needs_its_own_files_only(store, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    (copy / "rank-01" / "layer-001.safetensors").unlink()
    assert checks.store(copy, None, 2, "fp8", range(1, 2))[0].good, "both ranks are of host 0"
    assert "no such file" in checks.store(copy, None, 2, "fp8", range(1))[0].found


def test_a_store_of_another_checkpoint(store, monkeypatch):
    monkeypatch.setattr(checks, "fingerprint", lambda checkpoint: "other")
    finding, _ = checks.store(store, Checkpoint(TINY_K3), 2, "fp8", range(4))
    assert f"checkpoint: expected {TINY_K3}, found another" in finding.found


def test_disk(tmp_path, monkeypatch):
    assert checks.disk(tmp_path / "not" / "yet").good
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5))
    assert checks.disk(tmp_path).good is False
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written" in checks.disk(tmp_path).found


def test_clocks():
    now = 4e9
    assert checks.clock(now).good
    assert checks.clock(now, [now, now + 1.5, now, now]).good
    assert "host 2" in checks.clock(now, [now, now + 0.1, now - 600, now]).found
    assert checks.clock(now, [now, now, now + 600, now]).good is False
    assert "before the library's own files" in checks.clock(86400.0).found
