"""The parts that loading is made of: what each reads, and what it writes for which ranks.

A part reads whole rows of tensors, and no two parts read the same: each byte of a file is read at
most once, however many ranks of this host need something of it. A row is never read in pieces: the
columns that a host needs of it are too short for any disk. So w2 of an expert, o_proj, down_proj
and the embedding are read whole by every host.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kimi.checkpoint import PackedWeight
from kimi.config.model import TARGET_PREFIX
from kimi.errors import CodecError
from kimi.kernels import slices
from kimi.kernels.chip import LANES
from kimi.kernels.experts import slice_expert
from kimi.kernels.layout import EMBEDDING, EXPERT_WEIGHTS, Layout, layer_prefix
from kimi.kernels.matrix import Matrix, Piece, pack_panels, pack_tail
from kimi.kernels.mesh import Span
from kimi.kernels.stream import Block, Stream
from kimi.kernels.vectors import output_vectors
from kimi.kernels.words import U16, Array, bfloat16_bits
from kimi.loading.arrays import Writer


@dataclass(frozen=True)
class Region:
    """Rows of a tensor: all columns.

    Attributes:
      tensor: published name.
      rows: [start, stop), or None for all.
    """

    tensor: str
    rows: Span | None = None


@dataclass(frozen=True)
class Rows:
    """What was read of a region.

    Attributes:
      value: [rows, ...] as stored.
      first: row of the tensor that it begins with.
    """

    value: Array
    first: int = 0


Values = Mapping[str, Sequence[Rows]]  # by published name; several if rows between them are absent


@dataclass(frozen=True)
class Part(ABC):
    """A part.

    Attributes:
      layout: of the model.
      piece: the layer, or the number of layers for the output.
      ranks: those that it is for.
    """

    layout: Layout
    piece: int
    ranks: tuple[int, ...]

    @property
    @abstractmethod
    def regions(self) -> tuple[Region, ...]:
        """What it reads."""

    @abstractmethod
    def pack(self, values: Values, writer: Writer) -> None:
        """Writes what it reads. Raises LayoutError or CodecError naming the tensor."""

    @property
    def _is_output(self) -> bool:
        return self.piece == self.layout.config.num_hidden_layers

    @property
    def _prefix(self) -> str:
        return TARGET_PREFIX if self._is_output else layer_prefix(self.piece)


@dataclass(frozen=True)
class ExpertPart(Part):
    """One expert of a layer, for those of `ranks` that hold a slice of it."""

    expert: int

    @property
    def _stem(self) -> str:
        return f"{self._prefix}block_sparse_moe.experts.{self.expert}"

    def _span(self, rank: int) -> Span:
        return self.layout.mesh.expert_span(self.layout.config.moe_intermediate_size, rank)

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """The rows of w1 and w3 that these ranks hold, all of w2."""
        spans = [self._span(rank) for rank in self.ranks]
        rows = min(s[0] for s in spans), max(s[1] for s in spans)
        return tuple(
            Region(f"{self._stem}.{which}.weight_{part}", None if which == "w2" else rows)
            for which in EXPERT_WEIGHTS
            for part in ("packed", "scale")
        )

    def pack(self, values: Values, writer: Writer) -> None:
        """One block a rank."""
        gate, up, down = (_weight(values, f"{self._stem}.{which}") for which in EXPERT_WEIGHTS)
        first = values[f"{self._stem}.w1.weight_packed"][0].first
        block = self.layout.expert_block
        row = self.layout.expert_position(self.piece, self.expert) * block.rows
        for rank in self.ranks:
            weights = slice_expert((gate, up, down), *self._span(rank), first)
            with writer.chunk(rank, "experts", row, block.rows) as out:
                try:
                    block.pack(*weights, out.view(np.uint32))
                except CodecError as e:
                    raise CodecError(f"{self._stem}: slice of rank {rank}: {e}") from None


def _weight(values: Values, name: str) -> PackedWeight:
    packed, scale = (values[f"{name}.weight_{part}"][0].value for part in ("packed", "scale"))
    return PackedWeight(packed.view(np.uint8), scale.view(np.uint8))


@dataclass(frozen=True)
class MatrixPart(Part):
    """Dense matrices of a layer, or the head, or some panels of one.

    Attributes:
      names: matrices that read the same tensors; one, if only some panels are meant.
      panels: [start, stop) of its panels; the last also stands for the tail. None for all.
    """

    names: tuple[str, ...]
    panels: Span | None = None

    def _matrices(self, rank: int) -> list[Matrix]:
        matrices = piece_matrices(self.layout, self.piece, rank)
        return [self._cut(m) for m in matrices if m.name in self.names]

    def _cut(self, matrix: Matrix) -> Matrix:
        if self.panels is None:
            return matrix
        start, stop = self.panels[0] * LANES, self.panels[1] * LANES
        return columns(matrix, start, matrix.outputs if self.panels[1] == matrix.panels else stop)

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """The rows that any of the matrices has."""
        spans: dict[str, list[Span]] = {}
        for matrix in (m for rank in self.ranks for m in self._matrices(rank)):
            for piece in matrix.pieces:
                spans.setdefault(piece.tensor, []).append(piece.rows)
        return tuple(
            Region(self._prefix + name, span) for name in spans for span in _union(spans[name])
        )

    def pack(self, values: Values, writer: Writer) -> None:
        """The blocks of the stream that these matrices are cut into."""

        def read(piece: Piece) -> U16:
            name = self._prefix + piece.tensor
            rows = next(r for r in reversed(values[name]) if r.first <= piece.rows[0])
            start, stop = (i - rows.first for i in piece.rows)
            return bfloat16_bits(name, rows.value[start:stop, slice(*piece.cols)])

        stream = piece_stream(self.layout, self.piece)
        first = self.layout.first_tiles[self.piece] * stream.tile_rows
        for rank in self.ranks:
            for matrix in self._matrices(rank):
                bits = [read(piece) for piece in matrix.pieces]
                tail = pack_tail(matrix, bits) if matrix.tail_outputs else None
                for block in self._blocks(stream, matrix):
                    row = first + block.tile * stream.tile_rows + block.row
                    with writer.chunk(rank, "dense", row, block.rows) as out:
                        words = out.view(np.uint32)
                        if block.panels is not None:
                            panels = words.reshape(block.panels[1] - block.panels[0], -1, LANES)
                            pack_panels(matrix, bits, block.panels, block.inputs, panels)
                        elif tail is not None:
                            start, stop = (i // LANES for i in block.inputs)
                            words[...] = tail[start:stop].reshape(words.shape)

    def _blocks(self, stream: Stream, matrix: Matrix) -> list[Block]:
        """The blocks, with panels counted from the first of this part."""
        blocks = stream.blocks_of(matrix.name)
        if self.panels is None:
            return list(blocks)
        start, stop = self.panels
        last = stop == stream.matrix(matrix.name).panels
        return [
            b if b.panels is None else replace(b, panels=(b.panels[0] - start, b.panels[1] - start))
            for b in blocks
            if (last if b.panels is None else start <= b.panels[0] < stop)
        ]


def _union(spans: list[Span]) -> list[Span]:
    """Spans in order, those that touch as one."""
    union: list[Span] = []
    for start, stop in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(stop, union[-1][1])
        else:
            union.append((start, stop))
    return union


def piece_stream(layout: Layout, piece: int) -> Stream:
    """The dense stream of a layer, or of the head."""
    is_head = piece == layout.config.num_hidden_layers
    return layout.head_stream if is_head else layout.streams[layout.kind(piece)]


def piece_matrices(layout: Layout, piece: int, rank: int) -> tuple[Matrix, ...]:
    """The dense matrices of a layer, or the head."""
    if piece == layout.config.num_hidden_layers:
        return (slices.head_matrix(layout.config, layout.mesh, rank),)
    return layout.matrices(piece, rank)


def columns(matrix: Matrix, start: int, stop: int) -> Matrix:
    """Columns start .. stop of a matrix."""
    pieces, position = [], 0
    for piece in matrix.pieces:
        size = piece.shape[1]
        low, high = max(start - position, 0), min(stop - position, size)
        if low < high:
            if piece.transposed:
                cut = replace(piece, rows=(piece.rows[0] + low, piece.rows[0] + high))
            else:
                cut = replace(piece, cols=(piece.cols[0] + low, piece.cols[0] + high))
            pieces.append(cut)
        position += size
    return replace(matrix, pieces=tuple(pieces))


@dataclass(frozen=True)
class VectorPart(Part):
    """The small tensors of a layer, or of the output."""

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """All of them, whole."""
        c = self.layout.config
        vectors = output_vectors(c) if self._is_output else self.layout.layer_vectors(self.piece, 0)
        return tuple(Region(self._prefix + name) for v in vectors for name in v.tensors)

    def pack(self, values: Values, writer: Writer) -> None:
        """One array a rank."""
        tensors = {name: rows[0].value for name, rows in values.items()}
        rows, layer = self.layout.vector_rows, None if self._is_output else self.piece
        for rank in self.ranks:
            with writer.chunk(rank, "vectors", self.piece * rows, rows) as out:
                out[...] = self.layout.pack_vectors(tensors, layer, rank)


@dataclass(frozen=True)
class EmbeddingPart(Part):
    """Some rows of the embedding table."""

    rows: Span

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """These rows."""
        return (Region(EMBEDDING, self.rows),)

    def pack(self, values: Values, writer: Writer) -> None:
        """The ranks' columns of them."""
        start, stop = self.rows
        for rank in self.ranks:
            with writer.chunk(rank, "embedding", start, stop - start) as out:
                out[...] = self.layout.embedding_rows(values[EMBEDDING][0].value, rank)
