"""Streaming against `Layout.pack`: the same arrays, each byte read at most once."""

import os
from contextlib import contextmanager

import numpy as np
import pytest

from kimi.errors import CheckpointError
from kimi.kernels.experts import ExpertFormat
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.loading import plan as planning
from kimi.loading.arrays import ARRAYS, flat_shape, pieces, segments
from kimi.loading.errors import LoadError
from kimi.loading.plan import plan
from kimi.loading.stream import Limits, checkpoint_totals, stream
from tests.packing.target import pack
from tests.unit.checkpoint.build import write_folder
from tests.unit.kernels.build import random_tensors, small_32
from tests.unit.loading.models import small_data

TINY_ITEMS = 20_000


class Recorder:
    """Arrays of some ranks; how often each word was written."""

    def __init__(self, layout, ranks):
        self.found = {
            (r, a): np.zeros(flat_shape(layout, a), np.uint32) for r in ranks for a in ARRAYS
        }
        self.writes = {key: np.zeros(len(value), int) for key, value in self.found.items()}

    @contextmanager
    def chunk(self, rank, array, row, rows):
        key = rank, array
        part = np.full((rows, self.found[key].shape[1]), 0xA5A5A5A5, np.uint32)
        yield part.view(np.float32) if array == "vectors" else part
        self.found[key][row : row + rows] = part
        self.writes[key][row : row + rows] += 1


def run(layout, checkpoint, ranks, limits=None, **options):
    recorder, seen = Recorder(layout, ranks), []
    limits = limits or Limits(readers=2, workers=2)
    stream(layout, checkpoint, ranks, recorder, limits, seen.append, **options)
    return recorder, seen


@pytest.fixture(params=["whole", "cut"])
def items(request, monkeypatch):
    """Items as they are, which hold all of this model, and such that everything is cut."""
    if request.param == "cut":
        monkeypatch.setattr(planning, "ITEM_BYTES", TINY_ITEMS)


@pytest.mark.parametrize(
    "ranks, groups, form, own",
    [
        (1, 1, "mxfp4", [0]),
        (32, 16, "fp8", range(32)),
        (32, 32, "mxfp4", [3, 4, 17]),
        (8, 4, "fp8", range(4, 8)),
    ],
)
def test_equal_to_packing_in_memory(small, items, ranks, groups, form, own):
    layout = Layout(small.config, Mesh(ranks, groups), ExpertFormat(form))
    recorder, seen = run(layout, small, own)
    tensors = dict(small)
    for rank in own:
        expected = pack(layout, tensors, rank)
        for name in ARRAYS:
            value = getattr(expected, name).reshape(flat_shape(layout, name)).view(np.uint32)
            np.testing.assert_array_equal(recorder.found[rank, name], value, f"{rank} {name}")
    assert all(writes.max() == 1 for writes in recorder.writes.values())
    totals = checkpoint_totals(layout, small, own)
    assert seen[-1] == totals.nbytes and seen == sorted(seen)


@pytest.mark.parametrize("ranks, groups, own", [(1, 1, [0]), (32, 16, range(8, 16)), (4, 2, [2])])
def test_each_byte_is_read_at_most_once(small, items, ranks, groups, own):
    layout = Layout(small.config, Mesh(ranks, groups))
    extents = [e for item in plan(layout, small, own) for e in item.extents]
    spans = sorted((e.path, e.offset, e.offset + e.nbytes) for e in extents)
    for (path, _, end), (following, start, _) in zip(spans, spans[1:], strict=False):
        assert path != following or end <= start
    if len(own) == ranks:  # everything is read
        assert sum(e.nbytes for e in extents) == sum(small[name].nbytes for name in small)


def test_reads_follow_the_files_within_a_layer(small, monkeypatch):
    monkeypatch.setattr(planning, "ITEM_BYTES", TINY_ITEMS)
    layout = Layout(small.config, Mesh(1))
    for piece in range(pieces(layout)):
        firsts = [i.extents[0] for i in plan(layout, small, [0], [piece])]
        assert firsts == sorted(firsts, key=lambda e: (str(e.path), e.offset))


def test_items_fit_into_the_memory_that_is_planned(small, items):
    layout = Layout(small.config, Mesh(4, 2))
    totals = checkpoint_totals(layout, small, range(4))
    found = list(plan(layout, small, range(4)))
    assert max(item.memory_bytes for item in found) <= totals.item_bytes
    assert sum(item.nbytes for item in found) == totals.nbytes


def test_pieces_are_the_whole(small):
    layout = Layout(small.config, Mesh(2, 2))
    rows = {name: 0 for name in ARRAYS}
    for piece in range(pieces(layout)):
        for segment in segments(layout, piece):
            assert segment.row == rows[segment.array]
            rows[segment.array] += segment.rows
    assert rows == {name: flat_shape(layout, name)[0] for name in ARRAYS}


@pytest.mark.parametrize("piece", range(4))
def test_one_piece_alone(small, piece):
    layout = Layout(small.config, Mesh(2, 2))
    recorder, _ = run(layout, small, range(2), only=[piece])
    whole, _ = run(layout, small, range(2))
    own = {s.array: slice(s.row, s.row + s.rows) for s in segments(layout, piece)}
    for (rank, name), value in recorder.found.items():
        part = own.get(name, slice(0, 0))
        np.testing.assert_array_equal(value[part], whole.found[rank, name][part])
        value[part] = 0
        assert not value.any()


def test_float32_files(tmp_path):
    tensors = random_tensors(small_32())
    wide = {n: v if v.dtype == np.uint8 else v.astype(np.float32) for n, v in tensors.items()}
    from kimi.checkpoint import Checkpoint

    checkpoint = Checkpoint(write_folder(tmp_path / "wide", small_data(), {"a.safetensors": wide}))
    layout = Layout(checkpoint.config, Mesh(2, 2))
    recorder, _ = run(layout, checkpoint, [1])
    value = pack(layout, tensors, 1).dense.reshape(-1, 128)
    np.testing.assert_array_equal(recorder.found[1, "dense"], value)


def test_memory_is_bounded(small, monkeypatch):
    """One slot: every item waits for the one before, and all still arrives."""
    monkeypatch.setattr(planning, "ITEM_BYTES", TINY_ITEMS)
    layout = Layout(small.config, Mesh(1))
    least = checkpoint_totals(layout, small, [0]).item_bytes
    limits = Limits(memory_bytes=least, readers=3, workers=3)
    assert limits.slots(least) == 1
    recorder, _ = run(layout, small, [0], limits)
    np.testing.assert_array_equal(
        recorder.found[0, "experts"], pack(layout, dict(small), 0).experts.reshape(-1, 128)
    )
    with pytest.raises(LoadError, match=f"item of {least} bytes at least, found a bound of"):
        run(layout, small, [0], Limits(memory_bytes=least - 1))


@pytest.mark.parametrize("name", ["memory_bytes", "readers", "workers"])
def test_limits_must_be_possible(name):
    with pytest.raises(LoadError, match=f"{name}: expected at least 1, found 0"):
        Limits(**{name: 0})


EXPERT = "language_model.model.layers.2.block_sparse_moe.experts.7.w2.weight_packed"


def failing_reads(monkeypatch, checkpoint, tensor, fail):
    """Reads that touch the middle of a tensor call `fail`."""
    file = checkpoint.shards.file(checkpoint.shards.files[tensor])
    middle = file.offset(tensor) + file.tensors[tensor].nbytes // 2
    preadv = os.preadv

    def read(descriptor, buffers, offset, flags=0):
        own = os.path.samestat(os.fstat(descriptor), os.stat(file.path))
        if own and not flags and offset <= middle < offset + sum(map(len, buffers)):
            if offset < middle:
                return min(preadv(descriptor, buffers, offset), middle - offset)
            return fail(descriptor, buffers, offset)
        return preadv(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", read)


def test_a_read_error_ends_all_with_file_and_tensor(small, items, monkeypatch):
    def fail(descriptor, buffers, offset):
        raise OSError(5, "Input/output error")

    failing_reads(monkeypatch, small, EXPERT, fail)
    layout = Layout(small.config, Mesh(1))
    file = small.shards.files[EXPERT]
    with pytest.raises(LoadError, match=f"{file}: {EXPERT}: cannot be read at byte .*Input/output"):
        run(layout, small, [0])


def test_a_file_that_shrinks_meanwhile(small, monkeypatch):
    failing_reads(monkeypatch, small, EXPERT, lambda *_: 0)
    layout = Layout(small.config, Mesh(1))
    with pytest.raises(LoadError, match=f"{EXPERT}: expected .* found the end of the file"):
        run(layout, small, [0])


def test_an_error_of_the_writer_ends_all(small):
    layout = Layout(small.config, Mesh(1))

    class Full(Recorder):
        @contextmanager
        def chunk(self, rank, array, row, rows):
            if array == "experts" and row:
                raise LoadError("no more room")
            with super().chunk(rank, array, row, rows) as part:
                yield part

    with pytest.raises(LoadError, match="no more room"):
        stream(layout, small, [0], Full(layout, [0]), Limits(), lambda done: None)


def test_what_progress_raises_ends_all(small):
    def interrupt(done):
        raise KeyboardInterrupt

    layout = Layout(small.config, Mesh(1))
    with pytest.raises(KeyboardInterrupt):
        stream(layout, small, [0], Recorder(layout, [0]), Limits(), interrupt)


def rewritten(tmp_path, change):
    from kimi.checkpoint import Checkpoint

    tensors = random_tensors(small_32())
    change(tensors)
    return Checkpoint(write_folder(tmp_path / "m", small_data(), {"a.safetensors": tensors}))


def test_a_value_that_is_not_finite_is_named_with_its_place(tmp_path):
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    checkpoint = rewritten(tmp_path, lambda t: t[name].__setitem__((70, 5), np.inf))
    with pytest.raises(CheckpointError, match=rf"{name}: expected .* inf at index \[70, 5\]"):
        run(Layout(checkpoint.config, Mesh(32, 16)), checkpoint, [1])


@pytest.mark.parametrize("form", ["mxfp4", "fp8"])
def test_a_scale_that_is_none_is_named(tmp_path, form):
    from kimi.errors import CodecError

    name = "language_model.model.layers.1.block_sparse_moe.experts.9.w3.weight_scale"
    checkpoint = rewritten(tmp_path, lambda t: t[name].__setitem__((33, 1), 0))
    layout = Layout(checkpoint.config, Mesh(2, 1), ExpertFormat(form))
    with pytest.raises(CodecError, match=r"experts.9: slice of rank 1: .* found 0$"):
        run(layout, checkpoint, range(2))


def test_a_missing_tensor_is_named(tmp_path):
    name = "language_model.model.layers.1.self_attn.kv_b_proj.weight"
    checkpoint = rewritten(tmp_path, lambda t: t.pop(name))
    with pytest.raises(CheckpointError, match=f"{name}: missing"):
        run(Layout(checkpoint.config, Mesh(2, 2)), checkpoint, [0])
