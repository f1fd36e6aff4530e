"""Stores that are damaged, torn, or written by two at once; wrong places and values."""

import fcntl
import os
import signal
import time

import numpy as np
import pytest

from kimi.errors import InputError, KimiError
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.lab.bench import synthetic
from kimi.loading import folder
from kimi.loading.errors import LoadError, StoreError
from kimi.loading.journal import ALL, Share
from kimi.loading.manifest import Identity, Manifest
from kimi.loading.shard import Shard
from kimi.loading.store import Store
from kimi.loading.stream import Limits, checkpoint_totals
from tests import waiting
from tests.unit.loading.models import small_data
from tests.unit.loading.test_store import FILE, contents, flip, write, writer


def inodes(path) -> dict[str, int]:
    return {str(f.relative_to(path)): f.stat().st_ino for f in path.rglob("*") if f.is_file()}


def rewritten(small, path, share=ALL) -> set[str]:
    """The files that are others after the same call again."""
    before = inodes(path)
    assert write(small, path, share=share) == Manifest.read(path)
    return {name for name, inode in inodes(path).items() if before.get(name) != inode}


# Repair.


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda f, at=at: flip(f, at) for at in (0, 7, 8, 60, 1000, -1)),
        lambda f: os.truncate(f, f.stat().st_size - 1),
        lambda f: os.truncate(f, f.stat().st_size + 1),
        lambda f: os.truncate(f, 0),
        lambda f: f.unlink(),
    ],
)
def test_what_is_damaged_or_missing_is_written_again_and_nothing_else(
    small, finished, store, damage
):
    damage(store / FILE)
    with pytest.raises(KimiError, match=FILE):
        Store(store).verify(Limits(), lambda done: None)
    assert rewritten(small, store) == {FILE}
    assert contents(store) == contents(finished)


def test_a_missing_rank_is_written_again(small, finished, store):
    lost = {f"rank-03/{f.name}" for f in (store / "rank-03").iterdir()}
    for name in lost:
        (store / name).unlink()
    (store / "rank-03").rmdir()
    assert rewritten(small, store) == lost
    assert contents(store) == contents(finished)


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda f, at=at: flip(f, at) for at in (0, 20, 500, -3)),
        lambda f: os.truncate(f, 700),
        lambda f: os.truncate(f, 0),
        lambda f: f.unlink(),
    ],
)
def test_without_its_manifest_a_store_is_known_by_its_files(small, finished, store, damage):
    damage(store / "manifest.json")
    flip(store / FILE, 3000)
    assert rewritten(small, store) == {FILE, "manifest.json"}
    assert contents(store) == contents(finished)


def test_a_share_repairs_its_own_ranks(small, finished, store):
    other = FILE.replace("02", "00")
    for name in (FILE, other):
        (store / name).unlink()
    assert rewritten(small, store, Share(1, 2)) == {FILE}
    assert rewritten(small, store, Share(0, 2)) == {other}
    assert contents(store) == contents(finished)


def test_a_repair_that_is_interrupted(small, finished, store):
    names = [f"rank-0{rank}/layer-00{piece}.safetensors" for rank in (1, 3) for piece in (0, 2)]
    for name in names:
        flip(store / name, 2000)

    seen = set()

    def stop(done):
        seen.add(done)
        if len(seen) > 2:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write(small, store, progress=stop)
    assert (store / "manifest.json").exists()
    assert rewritten(small, store) <= set(names)
    assert contents(store) == contents(finished)


def test_weights_that_are_not_those_of_the_manifest_are_refused(small, store, monkeypatch):
    """As if the fingerprint had not seen that the checkpoint has changed."""
    (store / FILE).unlink()
    pwrite = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda d, data, at: pwrite(d, bytes(data)[:-1] + b"\1", at) if at else
        pwrite(d, data, at)
    )  # fmt: skip
    with pytest.raises(StoreError, match=f"{FILE}: expected .*, as the manifest says, found"):
        write(small, store)
    assert not (store / FILE).exists()


# Files instead of a journal.


@pytest.fixture
def unfinished(store):
    """A store whose manifest is not yet written."""
    (store / "manifest.json").unlink()
    return store


def shard_of(small) -> Shard:
    return Shard(Identity.of(small, Layout(small.config, Mesh(4, 2))), 2, 1)


def test_a_header_cut_or_flipped_at_any_byte_is_damage(small, finished, tmp_path):
    shard, path = shard_of(small), tmp_path / "f"
    raw = (finished / FILE).read_bytes()
    record = shard.record(finished / FILE)
    assert record == Manifest.read(finished).files[FILE] and record.nbytes == len(raw)
    path.write_bytes(raw)
    begin = len(shard.header())
    with path.open("r+b", buffering=0) as file:
        for at in range(begin):
            os.pwrite(file.fileno(), bytes([raw[at] ^ 1 << at % 8]), at)
            assert shard.record(path) is None, at
            os.pwrite(file.fileno(), raw[at : at + 1], at)
        assert shard.record(path) == record
        for size in (len(raw) + 1, len(raw) - 1, *range(begin, -1, -1)):
            file.truncate(size)
            assert shard.record(path) is None, size
    assert shard.record(tmp_path / "none") is None


@pytest.mark.parametrize(
    "metadata", ["null", "[]", "{}", '{"crc32":3}', '{"x":' * 9 + "1" + "}" * 9]
)
def test_a_header_that_says_nothing_is_damage(small, tmp_path, metadata):
    text = f'{{"__metadata__":{metadata}}}'.encode()
    (tmp_path / "f").write_bytes(len(text).to_bytes(8, "little") + text)
    assert shard_of(small).record(tmp_path / "f") is None


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda f, at=at: flip(f, at) for at in (7, 60, 400, 3000, -1)),
        *(lambda f, size=size: os.truncate(f, size) for size in (0, 5, 300, 5000)),
        lambda f: f.rename(f"{f}.part"),  # as if killed before it got its name
        lambda f: f.write_bytes(f.with_name("layer-000.safetensors").read_bytes()),
    ],
)
def test_an_unfinished_store_goes_on_with_what_is_whole(small, finished, unfinished, damage):
    damage(unfinished / FILE)
    assert rewritten(small, unfinished) == {FILE, "manifest.json"}
    assert contents(unfinished) == contents(finished)


def test_what_a_killed_writer_left_is_removed(small, finished, unfinished):
    for name in ("rank-01/manifest.json.part", "rank-03/layer-002.safetensors.part"):
        (unfinished / name).write_bytes(b"torn")
    assert write(small, unfinished, share=Share(0, 2)) == Manifest.read(unfinished)
    assert [f.name for f in unfinished.rglob("*.part")] == ["layer-002.safetensors.part"]
    write(small, unfinished)
    assert contents(unfinished) == contents(finished)


def test_any_file_of_another_store_refuses_the_folder(small, unfinished):
    """Even one of a rank that this mesh does not have, or of another share."""
    for path in unfinished.rglob("rank-0[012]/*"):
        path.unlink()
    for mesh, share in ((Mesh(2, 2), ALL), (Mesh(8, 4), Share(0, 8))):
        with pytest.raises(StoreError, match=r"rank-03/.*: mesh: expected \[[28].*, found \[4, 2"):
            write(small, unfinished, mesh, share=share)
    assert not list(unfinished.rglob("rank-00/*"))


def test_shares_of_different_stores_that_start_together(small, tmp_path):
    """Neither sees a file of the other at its start; the second does before its next piece."""
    path = tmp_path / "s"

    def other(done):
        if not (path / "rank-00").exists():
            write(small, path, share=Share(0, 2))

    with pytest.raises(StoreError, match="layer-001.*: experts: expected fp8, found mxfp4"):
        write(small, path, form=ExpertFormat.FP8, share=Share(1, 2), progress=other)


def test_a_file_that_does_not_reach_the_disk_gets_no_name(small, finished, tmp_path, monkeypatch):
    fsync, calls = os.fsync, []

    def fails(descriptor):
        calls.append(descriptor)
        if len(calls) == 7:
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StoreError, match=r"rank-0.*: cannot be written: Input/output error; "):
        write(small, tmp_path / "s")
    monkeypatch.undo()
    names = {str(f.relative_to(tmp_path / "s")) for f in (tmp_path / "s").rglob("*.safetensors")}
    assert 0 < len(names) < 16 and not (tmp_path / "s" / "manifest.json").exists()
    assert not rewritten(small, tmp_path / "s") & names
    assert contents(tmp_path / "s") == contents(finished)


def test_a_full_disk_gets_its_room_back(small, tmp_path, monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreError, match=r"rank-00/.*part: cannot be written: No space left"):
        write(small, tmp_path / "s")
    assert not list((tmp_path / "s").rglob("*.part"))


# One writer.


def test_a_second_writer_is_told_who_is_at_work(small, finished, tmp_path):
    path = tmp_path / "s"
    path.mkdir()
    who = f"^{path}: is being written by process {os.getpid()} on .+, since 2[-0-9]+ [0-9:]+ "
    with folder.held(path, [2]):
        with pytest.raises(StoreError, match=who):
            write(small, path)
        with pytest.raises(StoreError, match=who):
            write(small, path, share=Share(1, 2))
        assert write(small, path, share=Share(0, 2)) is None  # of other ranks
    assert write(small, path) == Manifest.read(path)
    assert contents(path) == contents(finished)


def test_a_lock_that_was_left_behind_is_none(small, finished, tmp_path):
    path = tmp_path / "s"
    path.mkdir()
    (path / "rank-01.lock").write_text("process 1 on moon, since 1969-07-20")
    write(small, path)
    assert contents(path) == contents(finished)


def test_a_lock_removed_by_its_last_holder_is_made_anew(tmp_path, monkeypatch):
    lock, flock, calls = tmp_path / "rank-00.lock", fcntl.flock, []

    def late(file, how):
        calls.append(how)
        if len(calls) == 1:
            lock.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with folder.held(tmp_path, [0]):
        assert len(calls) == 2 and str(os.getpid()) in lock.read_text()
        with pytest.raises(StoreError, match="is being written"), folder.held(tmp_path, [0]):
            pass
    assert not lock.exists()


def test_a_killed_writer_lets_go(small, finished, tmp_path):
    path = tmp_path / "s"
    with writer(small, path) as process:
        while not (path / "rank-03.lock").exists() and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    write(small, path)
    assert contents(path) == contents(finished)


@pytest.mark.parametrize("pairs", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_two_processes_on_one_folder(small, finished, tmp_path, pairs):
    """Each is complete, or was told that the other is at work; the store is right in any case."""
    for pair in range(pairs):
        path = tmp_path / str(pair)
        with writer(small, path) as first, writer(small, path) as second:
            codes = sorted(process.wait(waiting.limit(10)) for process in (first, second))
        assert codes in ([0, 0], [0, 1])
        assert contents(path) == contents(finished)


# Places and values.


@pytest.mark.parametrize(
    "path, message",
    [
        ("/kimi-no-such/a/store", "expected the folder /kimi-no-such/a, found none"),
        ("/kimi-no-such", "it is not made in /: mkdir /kimi-no-such"),
        ("/tmp/../kimi-no-such", "it is not made in /"),
        (__file__, "expected a folder, found a file"),
        (f"{__file__}/store", "test_repair.py, found none"),
    ],
)
def test_places_where_no_store_is_made(small, path, message):
    with pytest.raises(StoreError, match=message):
        write(small, path)
    assert not os.path.exists("/kimi-no-such")
    with pytest.raises(LoadError, match=message):
        next(synthetic.generate(path, small_data()))


@pytest.mark.parametrize("path", ["", None, 3, b"x"])
def test_what_is_no_path(small, path):
    for call in (Store, lambda p: write(small, p)):
        with pytest.raises(InputError, match="store: expected a path"):
            call(path)


def test_a_file_is_no_store():
    with pytest.raises(StoreError, match="test_repair.py: expected the folder of a store, found a"):
        Store(__file__)


@pytest.mark.parametrize("rank", [0.0, None, True, -1, 4, "0", np.float32(1)])
def test_what_is_no_rank(small, finished, rank):
    layout = Layout(small.config, Mesh(4, 2))
    calls = [
        lambda: Store(finished).nbytes([rank]),
        lambda: Store(finished).read([rank], None, Limits(), lambda done: None),
        lambda: checkpoint_totals(layout, small, [rank]),
    ]
    for call in calls:
        with pytest.raises(InputError, match="rank: expected an integer"):
            call()


@pytest.mark.parametrize("ranks", [0, None, 2.0])
def test_what_are_no_ranks(finished, ranks):
    with pytest.raises(InputError, match="ranks: expected some of 0 to 3, found"):
        Store(finished).nbytes(ranks)


def test_a_rank_counts_once(finished):
    found = Store(finished)
    assert found.nbytes([1, 1, np.int64(1)]) == found.nbytes([1])


@pytest.mark.parametrize("value", [None, 1.0, True, "2", 0, -1, float("nan")])
def test_what_are_no_counts(value):
    for name in ("memory_bytes", "readers", "workers"):
        with pytest.raises(LoadError, match=f"{name}: expected"):
            Limits(**{name: value})
    with pytest.raises(KimiError, match="share"):
        Share(0, value)
    if value != 0 or value is True:
        with pytest.raises(KimiError, match="share"):
            Share(value, 2)


@pytest.mark.parametrize("ranks", [None, 2.0, True, 0, 3, "2"])
def test_what_is_no_mesh(ranks):
    with pytest.raises(KimiError, match="mesh: ranks: expected one of"):
        Mesh(ranks)
    with pytest.raises(KimiError, match="mesh: expert_parallel: expected"):
        Mesh(2, ranks if ranks != 2 or isinstance(ranks, float) else 3)


def test_a_generated_checkpoint_that_does_not_fit_leaves_no_partial_file(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "_values", fails_midway(synthetic._values))
    data = synthetic.reduced(small_data(), 1, 32, 256)
    with pytest.raises(LoadError, match=r"cannot be written: No space left"):
        for _ in synthetic.generate(tmp_path / "m", data):
            pass
    assert list((tmp_path / "m").iterdir()) == []


def fails_midway(values):
    def some(*args):
        for number, value in enumerate(values(*args)):
            if args[1].endswith("o_proj.weight") or number:
                raise OSError(28, "No space left on device")
            yield value

    return some
