"""Stores: written, read, damaged, interrupted, asked for by the wrong people."""

import contextlib
import errno
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.loading import manifest as manifests
from kimi.loading import preshard as writing
from kimi.loading.arrays import ARRAYS, flat_shape
from kimi.loading.errors import LoadError, StoreError
from kimi.loading.journal import ALL, Share
from kimi.loading.load import load_store
from kimi.loading.manifest import Identity, Manifest, crc_of
from kimi.loading.preshard import preshard
from kimi.loading.shard import Shard
from kimi.loading.store import Store
from kimi.loading.stream import Limits
from tests import waiting
from tests.packing.target import pack, pack_layer
from tests.unit.loading import preshard_small
from tests.unit.loading.models import write_small
from tests.unit.loading.test_stream import Recorder

LIMITS = Limits(readers=2, workers=2)


def ignore(done):
    pass


def write(checkpoint, path, mesh=None, form=ExpertFormat.MXFP4, progress=ignore, share=ALL):
    layout = Layout(checkpoint.config, mesh or Mesh(4, 2), form)
    return preshard(checkpoint, Identity.of(checkpoint, layout), path, LIMITS, progress, share)


def contents(path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def read(path, ranks=range(4)):
    store = Store(path)
    recorder = Recorder(store.layout, ranks)
    store.read(ranks, recorder, LIMITS, ignore)
    return recorder


@pytest.mark.parametrize("form", ExpertFormat)
def test_a_store_holds_what_packing_gives(small, tmp_path, form):
    seen = []
    write(small, tmp_path / "s", Mesh(2, 2), form, seen.append)
    layout = Layout(small.config, Mesh(2, 2), form)
    assert seen[-1] == writing.source_bytes(small, layout) and seen == sorted(seen)
    recorder = read(tmp_path / "s", range(2))
    for rank in range(2):
        packed = pack(layout, dict(small), rank)
        for name in ARRAYS:
            value = getattr(packed, name).view(np.uint32)
            np.testing.assert_array_equal(
                recorder.found[rank, name], value.reshape(-1, value.shape[-1])
            )
    assert all(writes.min() == writes.max() == 1 for writes in recorder.writes.values())


def test_onto_devices(small, tmp_path):
    write(small, tmp_path / "s", Mesh(1))
    seen = []
    weights = load_store(Store(tmp_path / "s"), report=lambda *progress: seen.append(progress))
    packed = pack(Layout(small.config, Mesh(1)), dict(small), 0)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(weights, name)[0], getattr(packed, name))
    assert seen[-1][0] == seen[-1][1] == sum(getattr(packed, n).nbytes for n in ARRAYS)


def test_headers_may_be_longer_for_later_ranks(small, tmp_path):
    """Of two digits: where that is a step of alignment, their data begins later, too."""
    layout = Layout(small.config, Mesh(16, 8))
    config = Identity.of(small, layout).config

    def lengths(identity):
        return {len(Shard(identity, rank, 1).header()) for rank in (9, 10)}

    identities = (Identity(layout, "0" * size, config) for size in range(64))
    identity = next(i for i in identities if len(lengths(i)) == 2)
    preshard(small, identity, tmp_path / "s", LIMITS, ignore)
    recorder = read(tmp_path / "s", range(16))
    for rank in range(16):
        packed = pack(layout, dict(small), rank)
        for name in ARRAYS:
            value = getattr(packed, name).reshape(flat_shape(layout, name)).view(np.uint32)
            np.testing.assert_array_equal(recorder.found[rank, name], value)


def test_files_are_read_by_the_safetensors_library(small, finished):
    layout = Layout(small.config, Mesh(4, 2))
    found = load_file(finished / "rank-03" / "layer-001.safetensors")
    assert found.keys() == {"dense", "vectors", "experts"}
    np.testing.assert_array_equal(found["dense"], pack_layer(layout, dict(small), 1, 3))
    assert load_file(finished / "rank-00" / "output.safetensors").keys() == {
        "dense", "vectors", "embedding",
    }  # fmt: skip


def test_two_runs_write_the_same_bytes(small, finished, tmp_path):
    write(small, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(finished)
    assert {p.name for p in finished.iterdir()} == {
        "manifest.json", "rank-00", "rank-01", "rank-02", "rank-03",
    }  # fmt: skip


def test_a_finished_store_is_left_alone(small, store):
    before = {f: f.stat().st_mtime_ns for f in store.rglob("*")}
    manifest = write(small, store)
    assert manifest == Manifest.read(store)
    assert {f: f.stat().st_mtime_ns for f in store.rglob("*")} == before


def test_the_layout_version_stands_for_the_layout(small):
    """If this fails, arrays have changed: raise LAYOUT_VERSION, so that old stores are refused."""
    digest = hashlib.sha256()
    for form in ExpertFormat:
        packed = pack(Layout(small.config, Mesh(2, 2), form), dict(small), 1)
        for name in ARRAYS:
            digest.update(np.ascontiguousarray(getattr(packed, name)).tobytes())
    assert manifests.LAYOUT_VERSION == 1
    assert digest.hexdigest()[:16] == "bbbfaa4b6f8890b8"


# Refusals.


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("mesh", [8, 4], r"mesh: expected \[8, 4\], found \[4, 2\]"),
        ("experts", "fp8", "experts: expected fp8, found mxfp4"),
        ("tile rows", 1000, "tile rows: expected 1000, found 512"),
        ("checkpoint", "0" * 64, f"checkpoint: expected {'0' * 64}, found [0-9a-f]{{64}}"),
    ],
)
def test_a_store_for_something_else_is_refused(finished, field, value, message):
    with pytest.raises(StoreError, match=message):
        Store(finished).require({field: value})


def test_another_revision_of_the_checkpoint(small, finished, tmp_path):
    other = write_small(tmp_path / "other", seed=1)
    identity = Identity.of(other, Layout(other.config, Mesh(4, 2)))
    with pytest.raises(StoreError, match="checkpoint: expected .*, found"):
        Store(finished).require(identity.fields())
    with pytest.raises(StoreError, match="checkpoint: expected .*, found"):
        write(other, finished)


@pytest.mark.parametrize("change", [dict(mesh=Mesh(8, 4)), dict(form=ExpertFormat.FP8)])
def test_an_unfinished_store_is_continued_for_the_same_only(small, tmp_path, change, monkeypatch):
    path = tmp_path / "s"
    monkeypatch.setattr(writing.Journal, "close", lambda self: Manifest(self._identity, {}))
    write(small, path)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="mesh: expected|experts: expected"):
        write(small, path, **change)
    with pytest.raises(StoreError, match="manifest.json: no such file: an unfinished store"):
        Store(path)
    write(small, path)
    Store(path)


def test_a_folder_with_other_things_is_refused(small, tmp_path):
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(StoreError, match="expected an empty folder, found thesis.txt"):
        write(small, tmp_path)


def test_no_store(tmp_path):
    with pytest.raises(StoreError, match="manifest.json: no such file: no store"):
        Store(tmp_path / "nothing")


def edit_manifest(store, change, seal=True):
    data = json.loads((store / "manifest.json").read_text())
    change(data)
    if seal:
        del data["crc32"]
        data["crc32"] = crc_of(data)
    (store / "manifest.json").write_text(json.dumps(data))


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: d.update({"layout version": 0}), "layout version: expected 1, found 0"),
        (lambda d: d.update({"store version": 1}), "store version: expected 2, found 1"),
        (lambda d: d.update(format="x"), "format: expected 'kimi-k3 pre-sharded weights'"),
        (lambda d: d.pop("experts"), "missing 'experts'"),
        (lambda d: d.update(mesh=[3, 1]), "mesh: ranks: expected one of"),
        (lambda d: d["files"].popitem(), "files: expected 16, one for each rank and piece"),
        (lambda d: d["files"].update({"rank-00/output.safetensors": {}}), "expected nbytes and"),
    ],
)
def test_a_manifest_of_another_kind(store, change, message):
    edit_manifest(store, change)
    with pytest.raises(StoreError, match=message):
        Store(store)


def test_a_changed_manifest(store):
    edit_manifest(store, lambda d: d.update({"tile rows": 1024}), seal=False)
    with pytest.raises(StoreError, match="manifest.json: expected CRC-32 .*, found"):
        Store(store)


# Damage.


FILE = "rank-02/layer-001.safetensors"


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def assert_refused(store, message, error=StoreError):
    with pytest.raises(error, match=message):
        read(store)
    with pytest.raises(error, match=message):
        Store(store).verify(LIMITS, ignore)


@pytest.mark.parametrize("offset", [8, 60, 1000, -1])
def test_a_flipped_bit(store, offset):
    flip(store / FILE, offset)
    part = "header: expected" if 0 < offset < 100 else r"(dense|experts): expected CRC-32"
    assert_refused(store, f"{FILE}: {part}")


def test_two_ranks_exchanged(store):
    one, other = store / FILE, store / FILE.replace("02", "00")
    one.rename(store / "x")
    other.rename(one)
    (store / "x").rename(other)
    assert_refused(
        store, "layer-001.safetensors: header: expected that of rank [02], piece 1 .*, fo"
    )


def test_a_truncated_file(store):
    size = (store / FILE).stat().st_size
    os.truncate(store / FILE, size - 5)
    assert_refused(store, f"{FILE}: truncated: expected {size} bytes, found {size - 5}")


def test_a_missing_rank(store):
    shutil.rmtree(store / "rank-03")
    assert_refused(store, "rank-03/layer-000.safetensors: no such file")
    read(store, [0, 1, 2])  # which need nothing of it


def test_a_read_error(store, monkeypatch):
    preadv = os.preadv

    def broken(descriptor, buffers, offset, flags=0):
        if os.path.samestat(os.fstat(descriptor), os.stat(store / FILE)) and offset > 1000:
            raise OSError(errno.EIO, "Input/output error")
        return preadv(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", broken)
    assert_refused(store, f"{FILE}: .*: cannot be read at byte .*Input/output", LoadError)


def test_verify_reads_everything(finished):
    seen = []
    Store(finished).verify(LIMITS, seen.append)
    assert seen[-1] == Store(finished).nbytes(range(4))


# Interruption.


def test_a_full_disk(small, finished, tmp_path):
    """The kernel refuses to let a file grow; afterwards the same call continues."""
    limit = (finished / "rank-00" / "layer-002.safetensors").stat().st_size - 1
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(StoreError, match=r"layer-00.*: cannot be written: File too large; wh"):
            write(small, tmp_path / "s")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    write(small, tmp_path / "s")
    assert contents(tmp_path / "s") == contents(finished)


def test_a_disk_that_fills_up_in_the_middle(small, finished, tmp_path, monkeypatch):
    pwrite, left = os.pwrite, [3_000_000]

    def full(descriptor, data, offset):
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match=r"rank-0.*part: cannot be written: No space left"):
        write(small, tmp_path / "s")
    monkeypatch.undo()
    write(small, tmp_path / "s")
    assert contents(tmp_path / "s") == contents(finished)


def test_what_is_finished_is_kept_and_what_is_damaged_is_not(
    small, finished, tmp_path, monkeypatch
):
    path, stopped = tmp_path / "s", RuntimeError("stopped")

    def stop(done):
        if (path / "rank-00" / "layer-001.safetensors").exists():
            raise stopped

    with pytest.raises(RuntimeError, match="stopped"):
        write(small, path, progress=stop)
    good, bad = (path / f"rank-0{r}" / "layer-000.safetensors" for r in (0, 1))
    kept = good.stat().st_ino
    flip(bad, 5000)
    write(small, path)
    assert good.stat().st_ino == kept
    assert contents(path) == contents(finished)


@contextlib.contextmanager
def writer(small, path, share=ALL) -> Iterator[subprocess.Popen]:
    """A process that is about to write."""
    command = [sys.executable, preshard_small.__file__, str(small.path), str(path)]
    command += [str(share.index), str(share.count)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with waiting.started(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process


def kill_and_resume(small, finished, path, files, seconds) -> bool:
    """Kills the writer so long after so many files are there; returns whether it was at work."""
    with writer(small, path) as process:
        while len(list(path.rglob("*.safetensors"))) < files and process.poll() is None:
            time.sleep(0.001)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        killed = process.wait(waiting.limit(10)) == -signal.SIGKILL
    write(small, path)
    assert contents(path) == contents(finished)
    return killed


def test_a_process_without_jax_writes_the_same(small, finished, tmp_path):
    with writer(small, tmp_path / "s") as process:
        assert process.wait(waiting.limit(10)) == 0
    assert contents(tmp_path / "s") == contents(finished)


@pytest.mark.parametrize("moments", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments(small, finished, tmp_path, moments):
    rng = random.Random(moments)
    killed = []
    while len(killed) < moments or not any(killed):  # a busy machine may kill it too late
        path = tmp_path / str(len(killed))
        files, seconds = rng.randrange(13), rng.random() * 0.03
        killed.append(kill_and_resume(small, finished, path, files, seconds))
        assert len(killed) < moments + 50, "never killed at work"


# Several processes.


def test_shares_are_merged_by_the_last(small, finished, tmp_path):
    path, seen = tmp_path / "s", []
    assert write(small, path, share=Share(1, 3), progress=seen.append) is None
    layout = Layout(small.config, Mesh(4, 2))
    assert seen[-1] == writing.source_bytes(small, layout, Share(1, 3))
    assert sorted(p.name for p in path.iterdir()) == ["rank-01"]
    assert write(small, path, share=Share(2, 3)) is None
    assert write(small, path, share=Share(1, 3)) is None  # again: nothing to do
    assert write(small, path, share=Share(0, 3)) == Manifest.read(path)
    assert contents(path) == contents(finished)
    assert write(small, path, share=Share(2, 3)) == Manifest.read(path)


def test_all_ranks_are_in_one_share():
    for count in (1, 2, 3, 4, 5, 8, 32):
        shares = [Share(i, count).ranks(32) for i in range(count)]
        assert [rank for share in shares for rank in share] == list(range(32))


def test_the_work_may_be_divided_anew(small, finished, tmp_path):
    path = tmp_path / "s"
    assert write(small, path, share=Share(0, 4)) is None
    assert write(small, path, share=Share(3, 4)) is None
    kept = (path / "rank-00" / "output.safetensors").stat().st_ino
    flip(path / "rank-03" / "output.safetensors", 5000)
    assert write(small, path, share=Share(1, 2)) is None
    assert write(small, path) == Manifest.read(path)
    assert contents(path) == contents(finished)
    assert (path / "rank-00" / "output.safetensors").stat().st_ino == kept


def test_shares_of_different_stores(small, tmp_path):
    write(small, tmp_path / "s", share=Share(0, 2))
    with pytest.raises(StoreError, match="experts: expected fp8, found mxfp4"):
        write(small, tmp_path / "s", form=ExpertFormat.FP8, share=Share(1, 2))


@pytest.mark.parametrize(
    "share, message",
    [((2, 2), "index from 0 to 1, found 2"), ((0, 5), "at most 4, one a rank, found 5")],
)
def test_no_such_share(small, tmp_path, share, message):
    with pytest.raises(StoreError, match=f"share: expected .*{message}"):
        write(small, tmp_path / "s", share=Share(*share))


@pytest.mark.parametrize("moments", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_several_processes_at_once_one_of_them_killed(small, finished, tmp_path, moments):
    rng = random.Random(moments)
    for moment in range(moments):
        path = tmp_path / str(moment)
        with (
            writer(small, path, Share(0, 2)) as first,
            writer(small, path, Share(1, 2)) as second,
        ):
            time.sleep(rng.random() * 0.1)
            second.send_signal(signal.SIGKILL)
            assert first.wait(waiting.limit(10)) == 0
            second.wait(waiting.limit(10))
        assert not (path / "manifest.json").exists() or second.returncode == 0
        with writer(small, path, Share(1, 2)) as again:
            assert again.wait(waiting.limit(10)) == 0
        assert contents(path) == contents(finished)


def test_devices_for_another_mesh(finished):
    with pytest.raises(LoadError, match="expected one for each of 4 ranks, found 1"):
        load_store(Store(finished), jax.devices()[:1])
