"""A whole rank packed at once, and rank arrays back to checkpoint tensors.

The loader packs in parts as bytes arrive; this packs with all tensors at hand, as an independent
check of it, and comes back: the proof that packing loses and misplaces nothing.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from kimi.checkpoint import PackedWeight
from kimi.codecs.mxfp4 import GROUP
from kimi.config import ModelConfig
from kimi.config.model import TARGET_PREFIX
from kimi.kernels import slices, vectors
from kimi.kernels.experts import slice_expert
from kimi.kernels.layout import (
    EMBEDDING,
    EXPERT_WEIGHTS,
    Layout,
    Tensors,
    Weights,
    bits_reader,
    get,
    layer_prefix,
)
from kimi.kernels.matrix import Matrix, Piece
from kimi.kernels.mesh import Mesh, Span
from kimi.kernels.stream import Stream, pack_tiles
from kimi.kernels.words import BF16, U8, U16, U32, Array
from tests.packing.inverses import (
    decoded,
    unpack_bf16,
    unpack_expert,
    unpack_matrix,
    unpack_tiles,
    unpack_vectors,
)


def experts_of(mesh: Mesh, rank: int, config: ModelConfig) -> range:
    """The experts that a rank holds, or a slice of each, in the order of `local_expert`."""
    return range(mesh.expert_group(rank), config.num_experts, mesh.expert_parallel)


def pack(layout: Layout, tensors: Tensors, rank: int) -> Weights:
    """Everything that a rank holds.

    Raises:
      CheckpointError: a tensor is missing.
      LayoutError: a value that its device form cannot hold.
      CodecError: an expert is no MXFP4 weight, or has no exact FP8 form.
    """
    layers = range(layout.config.num_hidden_layers)
    own = experts_of(layout.mesh, rank, layout.config)
    dense = [*(pack_layer(layout, tensors, i, rank) for i in layers)]
    blocks = [pack_expert(layout, tensors, i, e, rank) for i in layout.moe_layers for e in own]
    return Weights(
        np.concatenate([*dense, pack_head(layout, tensors, rank)]),
        np.stack([layout.pack_vectors(tensors, i, rank) for i in (*layers, None)]),
        np.stack(blocks) if blocks else np.zeros(layout.shapes["experts"], np.uint32),
        pack_embedding(layout, tensors, rank),
    )


def pack_layer(layout: Layout, tensors: Tensors, layer: int, rank: int) -> U32:
    """The dense tiles of a layer."""
    stream, matrices = layout.streams[layout.kind(layer)], layout.matrices(layer, rank)
    return _tiles(tensors, stream, matrices, layer_prefix(layer))


def pack_head(layout: Layout, tensors: Tensors, rank: int) -> U32:
    """The dense tiles of the head."""
    matrix = slices.head_matrix(layout.config, layout.mesh, rank)
    return _tiles(tensors, layout.head_stream, (matrix,), TARGET_PREFIX)


def _tiles(tensors: Tensors, stream: Stream, matrices: Iterable[Matrix], prefix: str) -> U32:
    return pack_tiles(stream, matrices, bits_reader(tensors, prefix))


def pack_expert(layout: Layout, tensors: Tensors, layer: int, expert: int, rank: int) -> U32:
    """The block of an expert that `rank` holds."""
    stem = f"{layer_prefix(layer)}block_sparse_moe.experts.{expert}"
    gate, up, down = (_packed_weight(tensors, f"{stem}.{w}") for w in EXPERT_WEIGHTS)
    span = layout.mesh.expert_span(layout.config.moe_intermediate_size, rank)
    return layout.expert_block.pack(*slice_expert((gate, up, down), *span))


def pack_embedding(layout: Layout, tensors: Tensors, rank: int) -> U32:
    """The rank's columns of the embedding table."""
    return layout.embedding_rows(get(tensors, EMBEDDING), rank)


def _packed_weight(tensors: Tensors, name: str) -> PackedWeight:
    packed, scale = (get(tensors, f"{name}.weight_{part}") for part in ("packed", "scale"))
    return PackedWeight(packed.view(np.uint8), scale.view(np.uint8))


class Filling:
    """Tensors that fill up slice by slice. They start as values that no checkpoint has."""

    def __init__(self) -> None:
        self.found: dict[str, Array] = {}

    def full(self, name: str, shape: tuple[int, ...], dtype: np.dtype, fill: int) -> Array:
        """The tensor `name`, made of bytes `fill` when it is first asked for."""
        if name not in self.found:
            size = int(np.prod(shape)) * dtype.itemsize
            self.found[name] = np.full(size, fill, np.uint8).view(dtype).reshape(shape)
        return self.found[name]


_NAN = 0xFF  # bytes that are NaN in bfloat16 and float32


def unpack(layout: Layout, ranks: Sequence[Weights]) -> dict[str, Array]:
    """The checkpoint tensors from the arrays of all ranks, in rank order.

    Dense matrices and the embedding come back as bfloat16, small tensors as float32, experts as
    `weight_packed` and `weight_scale`; FP8 experts as float32 `weight`, with the exact values. What
    no rank held is NaN, or 255 in an expert.
    """
    out = Filling()
    c, bounds, last = layout.config, layout.first_tiles, layout.mesh.ranks - 1
    for rank, arrays in enumerate(ranks):
        for layer in range(c.num_hidden_layers):
            tiles = arrays.dense[bounds[layer] : bounds[layer + 1]]
            stream = layout.streams[layout.kind(layer)]
            own, end = layout.matrices(layer, rank), layout.matrices(layer, last)
            fill_dense(out, stream, own, end, tiles, layer_prefix(layer))
            found = layout.layer_vectors(layer, rank)
            fill_vectors(out, found, arrays.vectors[layer], layer_prefix(layer))
        own, end = ((slices.head_matrix(c, layout.mesh, r),) for r in (rank, last))
        fill_dense(out, layout.head_stream, own, end, arrays.dense[bounds[-2] :], TARGET_PREFIX)
        fill_vectors(out, vectors.output_vectors(c), arrays.vectors[-1], TARGET_PREFIX)
        for layer in layout.moe_layers:
            for expert in experts_of(layout.mesh, rank, c):
                block = arrays.experts[layout.expert_position(layer, expert)]
                _expert(out, layout, layer, expert, rank, block)
        fill_columns(
            out, f"{TARGET_PREFIX}model.embed_tokens.weight", (c.vocab_size, c.hidden_size),
            (0, c.vocab_size), layout.mesh.span(c.hidden_size, rank), arrays.embedding,
        )  # fmt: skip
    return out.found


def fill_dense(
    out: Filling, stream: Stream, matrices: Sequence[Matrix], last: Sequence[Matrix], tiles: U32,
    prefix: str,
) -> None:  # fmt: skip
    """Writes what a rank holds; `last` are the matrices of the last rank, where tensors end."""
    shapes: dict[str, tuple[int, int]] = {}
    for piece in (piece for matrix in last for piece in matrix.pieces):
        rows, cols = shapes.get(piece.tensor, (0, 0))
        shapes[piece.tensor] = max(rows, piece.rows[1]), max(cols, piece.cols[1])
    packed = unpack_tiles(stream, tiles)

    def write(piece: Piece, bits: U16) -> None:
        target = out.full(prefix + piece.tensor, shapes[piece.tensor], BF16, _NAN)
        target[slice(*piece.rows), slice(*piece.cols)] = np.ascontiguousarray(bits).view(BF16)

    for matrix in matrices:
        unpack_matrix(matrix, packed[matrix.name], write)


def fill_vectors(
    out: Filling, found: tuple[vectors.Vector, ...], array: vectors.F32, prefix: str
) -> None:
    """Writes the vectors that a rank holds."""
    shapes = {name: vector.shape for vector in found for name in vector.tensors}

    def write(name: str, span: Span | None, value: vectors.F32) -> None:
        target = out.full(prefix + name, shapes[name], np.dtype(np.float32), _NAN)
        target[slice(*(span or (0, None)))] = value

    unpack_vectors(found, array, write)


def _expert(out: Filling, layout: Layout, layer: int, expert: int, rank: int, block: U32) -> None:
    c = layout.config
    start, stop = layout.mesh.expert_span(c.moe_intermediate_size, rank)
    for which, weight in zip(
        EXPERT_WEIGHTS, unpack_expert(layout.expert_block, block), strict=True
    ):
        name = f"{layer_prefix(layer)}block_sparse_moe.experts.{expert}.{which}.weight"
        shape = (c.moe_intermediate_size, c.routed_expert_hidden_size)
        rows, inputs = (start, stop), (0, shape[1])
        if which == "w2":
            shape, rows, inputs = (shape[1], shape[0]), (0, shape[1]), (start, stop)
        if isinstance(weight, PackedWeight):
            _codes(out, f"{name}_packed", weight.packed, shape, rows, inputs, 2)
            _codes(out, f"{name}_scale", weight.scale, shape, rows, inputs, GROUP)
        else:
            values = out.full(name, shape, np.dtype(np.float32), _NAN)
            values[slice(*rows), slice(*inputs)] = decoded(weight)


def _codes(
    out: Filling, name: str, value: U8, shape: tuple[int, int], rows: Span, inputs: Span, per: int
) -> None:
    """Writes bytes that stand for `per` inputs each."""
    target = out.full(name, (shape[0], shape[1] // per), np.dtype(np.uint8), _NAN)
    target[slice(*rows), inputs[0] // per : inputs[1] // per] = value


def fill_columns(
    out: Filling, name: str, shape: tuple[int, int], rows: Span, columns: Span, words: U32
) -> None:
    """Writes a rectangle of a table that is stored as `words.pack_bf16`."""
    count = columns[1] - columns[0]
    bits = unpack_bf16(words[:, : -(-count // 2)], count)
    table = out.full(name, shape, BF16, _NAN)
    table[slice(*rows), slice(*columns)] = np.ascontiguousarray(bits).view(BF16)
