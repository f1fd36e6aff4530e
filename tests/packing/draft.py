"""Rank arrays back to the drafter's tensors: the proof that packing loses and misplaces nothing."""

from collections.abc import Sequence

from kimi.kernels.draft.layout import DraftLayout, DraftWeights, layer_prefix
from kimi.kernels.words import Array
from tests.packing.target import Filling, fill_columns, fill_dense, fill_vectors


def unpack(layout: DraftLayout, ranks: Sequence[DraftWeights]) -> dict[str, Array]:
    """The drafter's tensors from the arrays of all ranks, in rank order.

    Matrices and tables come back as bfloat16, small tensors as float32. What no rank held is NaN.
    """
    out, c, last = Filling(), layout.config, layout.mesh.ranks - 1
    for rank, arrays in enumerate(ranks):
        dense, vocabulary = arrays.dense, (0, c.vocab_size)
        for stream, matrix, tiles in (
            (layout.fuse_stream, layout.fuse_matrix, dense[: layout.layer_tile]),
            (layout.head_stream, layout.head_matrix, dense[layout.head_tile :]),
            (layout.markov_stream, layout.markov_matrix, arrays.markov_out[None]),
        ):
            fill_dense(out, stream, (matrix(rank),), (matrix(last),), tiles, "")
        for layer in range(c.num_hidden_layers):
            count = layout.layer_stream.tiles
            first = layout.layer_tile + layer * count
            own, others = layout.layer_matrices(rank), layout.layer_matrices(last)
            tiles, prefix = dense[first : first + count], layer_prefix(layer)
            fill_dense(out, layout.layer_stream, own, others, tiles, prefix)
            fill_vectors(out, layout.layer_vectors, arrays.vectors[layer], prefix)
        fill_vectors(out, layout.frame_vectors, arrays.vectors[-1], "")
        columns = layout.mesh.span(c.hidden_size, rank)
        shape = (c.vocab_size, c.hidden_size)
        fill_columns(out, "embed_tokens.weight", shape, vocabulary, columns, arrays.embedding)
        rows, shape = layout.mesh.span(c.vocab_size, rank), (c.vocab_size, c.markov_rank)
        name = "markov_head.markov_w1.weight"
        fill_columns(out, name, shape, rows, (0, c.markov_rank), arrays.markov_in)
    return out.found
