"""The drafter's weights on one rank: shapes, and checkpoint tensors to arrays.

    dense       u32 [tiles, tile_rows, 128]          fc, the layers, the head: a stream of tiles
    vectors     f32 [layers + 1, rows, 128]          small tensors; the last entry is the frame's
    embedding   u32 [vocab, words]                   the rank's columns, see `words.pack_bf16`
    markov_in   u32 [vocab / ranks, words]           the rank's rows of w1, see `words.pack_bf16`
    markov_out  u32 [rows, 128]                      the rank's outputs of w2: a stream of one tile

Tiles, panels and vectors are those of the target (see `kernels.stream`, `kernels.vectors`), on the
same ranks. Queries, MLP and vocabulary are divided over all ranks, and so are the heads of keys
and values, or each of these is held by several ranks if there are fewer heads than ranks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kimi.config import DraftConfig, ModelConfig
from kimi.config.model import TARGET_PREFIX
from kimi.kernels import vectors
from kimi.kernels.chip import LANES, SUBLANES, round_up
from kimi.kernels.errors import LayoutError
from kimi.kernels.layout import Tensors, bits_reader, floats_reader, get
from kimi.kernels.matrix import Matrix, Piece
from kimi.kernels.mesh import Mesh, Span
from kimi.kernels.stream import GROUP_PANELS, Stream, cut, pack_tiles, tile_rows
from kimi.kernels.vectors import Vector
from kimi.kernels.words import U32, Array, bfloat16_bits, pack_bf16, packed_words, pad

# What stands in where a drafter's own tensor is not stored: newer speculators drop these two.
SHARED = {
    "embed_tokens.weight": f"{TARGET_PREFIX}model.embed_tokens.weight",
    "lm_head.weight": f"{TARGET_PREFIX}lm_head.weight",
}


class DraftWeights(NamedTuple):
    """The drafter's, in the order of its kernel's arguments; as `kernels.layout.Weights`."""

    dense: Any
    vectors: Any
    embedding: Any
    markov_in: Any
    markov_out: Any


class _WithTarget(Mapping[str, Array]):
    """The drafter's tensors, and the target's for those that it shares."""

    def __init__(self, own: Tensors, target: Tensors | None):
        self._own, self._target = own, target

    def __getitem__(self, name: str) -> Array:
        if name not in self._own and name in SHARED and self._target is not None:
            return get(self._target, SHARED[name])
        return self._own[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


@dataclass(frozen=True)
class DraftLayout:
    """How a drafter lies on the ranks of its target.

    Attributes:
      config: the drafter.
      target: the model that it drafts for.
      mesh: the ranks; expert groups mean nothing here.
      tile_rows: of the dense stream; 0 for the target's default.

    Raises:
      ConfigError: the drafter was made for another model.
      LayoutError: it cannot be divided so.
    """

    config: DraftConfig
    target: ModelConfig
    mesh: Mesh
    tile_rows: int = 0

    def __post_init__(self) -> None:
        c, ranks = self.config, self.mesh.ranks
        c.check_target(self.target)
        for name in ("num_attention_heads", "hidden_size", "intermediate_size", "vocab_size"):
            if getattr(c, name) % ranks:
                raise LayoutError(
                    f"draft layout: {name}: expected a multiple of {ranks} ranks, found "
                    f"{getattr(c, name)}"
                )
        if c.num_key_value_heads % ranks and ranks % c.num_key_value_heads:
            raise LayoutError(
                f"draft layout: num_key_value_heads: expected a multiple or a divisor of {ranks} "
                f"ranks, found {c.num_key_value_heads}"
            )
        dense = (self.fuse_matrix(0), *self.layer_matrices(0), self.head_matrix(0))
        rows = tile_rows("draft layout", self.tile_rows, c.hidden_size, dense)
        object.__setattr__(self, "tile_rows", rows)

    # What a rank holds.

    @property
    def heads(self) -> int:
        """Query heads of a rank."""
        return self.mesh.local(self.config.num_attention_heads)

    def key_heads(self, rank: int) -> Span:
        """Heads of keys and values that a rank holds: those of its query heads."""
        heads, ranks = self.config.num_key_value_heads, self.mesh.ranks
        if heads % ranks == 0:
            return self.mesh.span(heads, rank)
        own = rank // (ranks // heads)
        return own, own + 1

    @property
    def local_key_heads(self) -> int:
        """How many these are."""
        start, stop = self.key_heads(0)
        return stop - start

    def _by_outputs(self, name: str, tensor: str, rank: int, outputs: int, inputs: int) -> Matrix:
        rows = self.mesh.span(outputs, rank)
        return Matrix(name, (Piece(f"{tensor}.weight", rows, (0, inputs)),))

    def fuse_matrix(self, rank: int) -> Matrix:
        """The projection of the taps."""
        c = self.config
        return self._by_outputs("fuse", "fc", rank, c.hidden_size, c.tap_width)

    def head_matrix(self, rank: int) -> Matrix:
        """The language model head."""
        c = self.config
        return self._by_outputs("head", "lm_head", rank, c.vocab_size, c.hidden_size)

    def markov_matrix(self, rank: int) -> Matrix:
        """w2: the same columns as the head."""
        c, tensor = self.config, "markov_head.markov_w2"
        return self._by_outputs("markov", tensor, rank, c.vocab_size, c.markov_rank)

    def layer_matrices(self, rank: int) -> tuple[Matrix, ...]:
        """Of every layer, in the order of use; names within the layer."""
        c, mesh = self.config, self.mesh
        hidden, inner = (0, c.hidden_size), mesh.span(c.intermediate_size, rank)
        query = _channels(mesh.span(c.num_attention_heads, rank), c.head_dim)
        key = _channels(self.key_heads(rank), c.head_dim)
        spans = {"q": query, "k": key, "v": key}
        project = tuple(Piece(f"self_attn.{n}_proj.weight", s, hidden) for n, s in spans.items())
        gate_up = tuple(Piece(f"mlp.{n}_proj.weight", inner, hidden) for n in ("gate", "up"))
        return (
            Matrix("project", project),
            Matrix("attention_out", (Piece("self_attn.o_proj.weight", hidden, query),)),
            Matrix("mlp_in", gate_up),
            Matrix("mlp_out", (Piece("mlp.down_proj.weight", hidden, inner),)),
        )

    @cached_property
    def layer_vectors(self) -> tuple[Vector, ...]:
        """The small tensors of a layer; every rank holds all."""
        hidden, head = (self.config.hidden_size,), (self.config.head_dim,)
        return (
            Vector("attention_norm", ("input_layernorm.weight",), hidden),
            Vector("mlp_norm", ("post_attention_layernorm.weight",), hidden),
            Vector("query_norm", ("self_attn.q_norm.weight",), head),
            Vector("key_norm", ("self_attn.k_norm.weight",), head),
        )

    @cached_property
    def frame_vectors(self) -> tuple[Vector, ...]:
        """The small tensors outside the layers."""
        hidden, width = (self.config.hidden_size,), self.config.hidden_size
        return (
            Vector("committed_norm", ("hidden_norm.weight",), hidden),
            Vector("output_norm", ("norm.weight",), hidden),
            Vector("confidence", ("confidence_head.proj.weight",),
                   (1, width + self.config.markov_rank)),
            Vector("confidence_bias", ("confidence_head.proj.bias",), (1,)),
        )  # fmt: skip

    # Shapes.

    @cached_property
    def fuse_stream(self) -> Stream:
        """Tiles before the layers."""
        return cut((self.fuse_matrix(0),), self.tile_rows)

    @cached_property
    def layer_stream(self) -> Stream:
        """Tiles of one layer."""
        return cut(self.layer_matrices(0), self.tile_rows)

    @cached_property
    def head_stream(self) -> Stream:
        """Tiles behind the layers."""
        return cut((self.head_matrix(0),), self.tile_rows)

    @cached_property
    def markov_stream(self) -> Stream:
        """w2 as one tile, which stays in VMEM."""
        matrix = self.markov_matrix(0)
        rows = matrix.panels * matrix.panel_inputs // 2
        rows += matrix.tail_outputs // 2 * (matrix.tail_inputs // LANES)
        least = GROUP_PANELS * matrix.panel_inputs // 2  # so that inputs are not cut
        return cut((matrix,), round_up(max(rows, least), SUBLANES))

    @property
    def layer_tile(self) -> int:
        """First tile of the first layer."""
        return self.fuse_stream.tiles

    @property
    def head_tile(self) -> int:
        """First tile of the head."""
        return self.layer_tile + self.config.num_hidden_layers * self.layer_stream.tiles

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.head_tile + self.head_stream.tiles

    @property
    def embedding_words(self) -> int:
        """Words of a row of the embedding."""
        return packed_words(self.mesh.local(self.config.hidden_size))

    @property
    def markov_words(self) -> int:
        """Words of a row of w1."""
        return packed_words(self.config.markov_rank)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays of `DraftWeights`, by name."""
        c, kinds = self.config, (self.layer_vectors, self.frame_vectors)
        rows = max(vectors.total_rows(v) for v in kinds)
        return {
            "dense": (self.tiles, self.tile_rows, LANES),
            "vectors": (c.num_hidden_layers + 1, rows, LANES),
            "embedding": (c.vocab_size, self.embedding_words),
            "markov_in": (self.mesh.local(c.vocab_size), self.markov_words),
            "markov_out": (self.markov_stream.tile_rows, LANES),
        }

    @property
    def nbytes(self) -> int:
        """HBM bytes of a rank's weights."""
        return sum(int(np.prod(shape)) * 4 for shape in self.shapes.values())

    # Packing. `tensors` has the published names; see `checkpoint.DraftCheckpoint`.

    def pack(self, tensors: Tensors, rank: int, target: Tensors | None = None) -> DraftWeights:
        """Everything that a rank holds.

        Args:
          target: the target's tensors, for an embedding and a head that the drafter does not store.

        Raises:
          CheckpointError: a tensor is missing.
          LayoutError: a value that its device form cannot hold.
        """
        found = _WithTarget(tensors, target)
        layers = range(self.config.num_hidden_layers)
        dense = [
            _tiles(found, self.fuse_stream, (self.fuse_matrix(rank),)),
            *(_tiles(found, self.layer_stream, self.layer_matrices(rank), layer_prefix(i))
              for i in layers),
            _tiles(found, self.head_stream, (self.head_matrix(rank),)),
        ]  # fmt: skip
        small = [*(self._vectors(found, i) for i in layers), self._vectors(found, None)]
        (markov_out,) = _tiles(found, self.markov_stream, (self.markov_matrix(rank),))
        every, own = (0, self.config.vocab_size), self.mesh.span(self.config.vocab_size, rank)
        columns = self.mesh.span(self.config.hidden_size, rank)
        return DraftWeights(
            np.concatenate(dense),
            np.stack(small),
            self._table(found, "embedding", "embed_tokens.weight", every, columns),
            self._table(found, "markov_in", "markov_head.markov_w1.weight", own,
                        (0, self.config.markov_rank)),
            markov_out,
        )  # fmt: skip

    def _vectors(self, tensors: Tensors, layer: int | None) -> vectors.F32:
        own = self.frame_vectors if layer is None else self.layer_vectors
        prefix = "" if layer is None else layer_prefix(layer)
        read = floats_reader(tensors, prefix)
        return vectors.pack_vectors(own, self.shapes["vectors"][1], read)

    def _table(self, tensors: Tensors, array: str, name: str, rows: Span, columns: Span) -> U32:
        value = get(tensors, name)[slice(*rows), slice(*columns)]
        return pad(pack_bf16(bfloat16_bits(name, value)), *self.shapes[array])


def layer_prefix(layer: int) -> str:
    """What precedes the names of a layer's tensors."""
    return f"layers.{layer}."


def _tiles(tensors: Tensors, stream: Stream, matrices: tuple[Matrix, ...], prefix: str = "") -> U32:
    return pack_tiles(stream, matrices, bits_reader(tensors, prefix))


def _channels(heads: Span, width: int) -> Span:
    return heads[0] * width, heads[1] * width
