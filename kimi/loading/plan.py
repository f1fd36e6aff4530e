"""What this host reads, in the order of the files, in items of a bounded size."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kimi.checkpoint import Checkpoint, TensorInfo
from kimi.kernels.chip import LANES
from kimi.kernels.layout import Layout
from kimi.kernels.matrix import Matrix
from kimi.kernels.mesh import Span
from kimi.kernels.stream import Stream
from kimi.loading.arrays import pieces
from kimi.loading.parts import (
    EmbeddingPart,
    ExpertPart,
    MatrixPart,
    Part,
    Region,
    VectorPart,
    piece_matrices,
    piece_stream,
)

ITEM_BYTES = 32 << 20  # parts are cut and joined to about this
_BF16 = 2
PAGE_BYTES = 4096  # what reading past the system's cache is done in


@dataclass(frozen=True, slots=True)
class Extent:
    """A region in its file.

    Attributes:
      region: what is read.
      stored: name in the file.
      path: the file.
      offset, nbytes: where in the file.
      info: of the whole tensor.
    """

    region: Region
    stored: str
    path: Path
    offset: int
    nbytes: int
    info: TensorInfo

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is read."""
        rows = self.region.rows
        return self.info.shape if rows is None else (rows[1] - rows[0], *self.info.shape[1:])


@dataclass(frozen=True)
class Item:
    """Parts that are read, packed and written together.

    Attributes:
      parts: what it does.
      extents: what it reads, in the order of the files: an extent for each region of the parts.
    """

    parts: tuple[Part, ...]
    extents: tuple[Extent, ...]

    @cached_property
    def nbytes(self) -> int:
        """Bytes to read."""
        return sum(extent.nbytes for extent in self.extents)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each extent goes in memory: off a page as in the file, neighbours side by side."""
        offsets, end = [], 0
        for run in self.runs:
            end += (self.extents[run[0]].offset - end) % PAGE_BYTES
            for i in run:
                offsets.append(end)
                end += self.extents[i].nbytes
        return tuple(offsets)

    @property
    def memory_bytes(self) -> int:
        """Memory to read into."""
        return self.offsets[-1] + self.extents[-1].nbytes

    @property
    def runs(self) -> Iterator[list[int]]:
        """Indices of extents that one read gets."""
        run: list[int] = []
        end: tuple[Path, int] | None = None
        for i, extent in enumerate(self.extents):
            if run and end != (extent.path, extent.offset):
                yield run
                run = []
            run.append(i)
            end = extent.path, extent.offset + extent.nbytes
        yield run


def plan(
    layout: Layout, checkpoint: Checkpoint, ranks: Sequence[int], only: Iterable[int] | None = None
) -> Iterator[Item]:
    """Everything that `ranks` need, piece by piece, each in the order of the files.

    Args:
      only: the pieces meant (see `arrays.pieces`); None for all.
    Raises:
      CheckpointError: a tensor is missing, or a file is broken.
    """
    order = {name: i for i, name in enumerate(dict.fromkeys(checkpoint.shards.files.values()))}

    def position(extent: Extent) -> tuple[int, int]:
        return order[extent.path.name], extent.offset

    for piece in range(pieces(layout)) if only is None else only:
        located = []
        for part in parts(layout, tuple(ranks), piece):
            extents = (locate(checkpoint, region) for region in part.regions)
            located.append((part, sorted(extents, key=position)))
        located.sort(key=lambda pair: position(pair[1][0]))
        for group in _joined(located):
            together = sorted((e for _, extents in group for e in extents), key=position)
            yield Item(tuple(part for part, _ in group), tuple(together))


_Located = tuple[Part, list[Extent]]


def _joined(located: Iterable[_Located]) -> Iterator[list[_Located]]:
    """Consecutive parts together, up to `ITEM_BYTES`."""
    group: list[_Located] = []
    total = 0
    for part, extents in located:
        nbytes = sum(extent.nbytes + PAGE_BYTES for extent in extents)
        if group and total + nbytes > ITEM_BYTES:
            yield group
            group, total = [], 0
        group.append((part, extents))
        total += nbytes
    if group:
        yield group


@dataclass(frozen=True)
class Totals:
    """What a host reads.

    Attributes:
      nbytes: in all.
      item_bytes: memory that the largest item takes.
    """

    nbytes: int
    item_bytes: int


def totals(
    layout: Layout,
    ranks: Sequence[int],
    region_bytes: Callable[[Region], int],
    only: Iterable[int] | None = None,
) -> Totals:
    """What a host with `ranks` reads. Layers of one kind read the same.

    Args:
      region_bytes: of a region.
      only: as in `plan`.
    """
    total, largest = 0, ITEM_BYTES
    by_kind: dict[object, int] = {}
    for piece in range(pieces(layout)) if only is None else only:
        is_output = piece == layout.config.num_hidden_layers
        kind = None if is_output else layout.kind(piece)
        if kind not in by_kind:
            by_kind[kind] = 0
            for part in parts(layout, tuple(ranks), piece):
                sizes = [region_bytes(region) for region in part.regions]
                by_kind[kind] += sum(sizes)
                largest = max(largest, sum(sizes) + PAGE_BYTES * len(sizes))
        total += by_kind[kind]
    return Totals(total, largest)


def locate(checkpoint: Checkpoint, region: Region) -> Extent:
    """Where a region lies. Raises CheckpointError if its tensor is missing or malformed."""
    stored = checkpoint.stored_name(region.tensor)
    info = checkpoint.info(stored)
    file = checkpoint.shards.file(checkpoint.shards.files[stored])
    offset, nbytes = file.offset(stored), info.nbytes
    if region.rows is not None:
        row = nbytes // info.shape[0]
        offset, nbytes = offset + region.rows[0] * row, (region.rows[1] - region.rows[0]) * row
    return Extent(region, stored, file.path, offset, nbytes, info)


def parts(layout: Layout, ranks: tuple[int, ...], piece: int) -> Iterator[Part]:
    """The parts of one piece."""
    yield VectorPart(layout, piece, ranks)
    yield from _matrix_parts(layout, ranks, piece)
    if piece == layout.config.num_hidden_layers:
        yield from _embedding_parts(layout, ranks, piece)
    elif layout.config.is_moe(piece):
        for expert in range(layout.config.num_experts):
            group = layout.mesh.owner(expert)
            owners = tuple(r for r in ranks if layout.mesh.expert_group(r) == group)
            if owners:
                yield ExpertPart(layout, piece, owners, expert)


def _embedding_parts(layout: Layout, ranks: tuple[int, ...], piece: int) -> Iterator[Part]:
    c = layout.config
    step = max(1, ITEM_BYTES // (c.hidden_size * _BF16))
    for start in range(0, c.vocab_size, step):
        rows = start, min(start + step, c.vocab_size)
        yield EmbeddingPart(layout, piece, ranks, rows)


def _matrix_parts(layout: Layout, ranks: tuple[int, ...], piece: int) -> Iterator[Part]:
    """Matrices that read the same rows for several ranks are cut into panels, others by rank."""
    by_rank = {rank: piece_matrices(layout, piece, rank) for rank in ranks}
    stream = piece_stream(layout, piece)
    for names in _sharing(by_rank[ranks[0]]):
        chosen = {rank: [m for m in by_rank[rank] if m.name in names] for rank in ranks}
        for some in [ranks] if _overlap(chosen.values()) else [(rank,) for rank in ranks]:
            runs: Iterable[Span | None] = (None,)
            if len(names) == 1:
                runs = _panel_runs(stream, chosen[some[0]][0], len(some))
            for panels in runs:
                yield MatrixPart(layout, piece, some, names, panels)


def _sharing(matrices: Sequence[Matrix]) -> list[tuple[str, ...]]:
    """Names of matrices in groups that read the same tensors."""
    groups: dict[str, list[str]] = {}
    for matrix in matrices:
        groups.setdefault(matrix.pieces[0].tensor, []).append(matrix.name)
    return [tuple(names) for names in groups.values()]


def _overlap(by_rank: Iterable[Sequence[Matrix]]) -> bool:
    """Whether two ranks read the same rows."""
    seen: dict[str, list[Span]] = {}
    for matrices in by_rank:
        spans = [(p.tensor, p.rows) for m in matrices for p in m.pieces]
        if any(a < stop and start < b for t, (a, b) in spans for start, stop in seen.get(t, ())):
            return True
        for tensor, rows in spans:
            seen.setdefault(tensor, []).append(rows)
    return False


def _panel_runs(stream: Stream, matrix: Matrix, ranks: int) -> Iterator[Span | None]:
    """Runs of panels, whole blocks of the stream, of about `ITEM_BYTES` for so many ranks."""
    bounds = sorted({b.panels for b in stream.blocks_of(matrix.name) if b.panels is not None})
    panel_bytes = matrix.inputs * LANES * _BF16 * ranks
    if len(bounds) < 2 or panel_bytes * matrix.panels <= ITEM_BYTES:
        yield None
        return
    start = 0
    for (_, stop), following in zip(bounds, [*bounds[1:], None], strict=True):
        if following is None or (following[1] - start) * panel_bytes > ITEM_BYTES:
            yield start, stop
            start = stop
