"""The arrays that one rank holds: their shapes, and checkpoint tensors to arrays.

    dense      u32 [tiles, tile_rows, 128]    all dense matrices, layer after layer, then the head
    vectors    f32 [layers + 1, rows, 128]    small tensors; the last entry is the output's
    experts    u32 [MoE layers * local experts, rows, 128]   a block per expert, see `experts`
    embedding  u32 [vocab, words]             the rank's columns of the table, see `words.pack_bf16`

All ranks have the same shapes. `slices` says what a rank holds of each tensor, `matrix`, `stream`,
`vectors` and `experts` how. This module puts them together, and is what loaders and kernels ask.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kimi.config import ModelConfig
from kimi.config.model import TARGET_PREFIX
from kimi.errors import CheckpointError
from kimi.kernels import slices, vectors
from kimi.kernels.chip import LANES
from kimi.kernels.errors import LayoutError
from kimi.kernels.experts import ExpertBlock, ExpertFormat
from kimi.kernels.matrix import Matrix, Piece
from kimi.kernels.mesh import Mesh
from kimi.kernels.stream import Stream, cut, cut_behind, join, tile_rows
from kimi.kernels.words import (
    U16,
    U32,
    Array,
    bfloat16_bits,
    exact_float32,
    pack_bf16,
    packed_words,
    pad,
)

Tensors = Mapping[str, Array]
EXPERT_WEIGHTS = ("w1", "w3", "w2")  # gate, up, down
EMBEDDING = f"{TARGET_PREFIX}model.embed_tokens.weight"


@dataclass(frozen=True)
class LayerKind:
    """What two layers with the same program have in common."""

    mla: bool
    moe: bool

    @property
    def name(self) -> str:
        """For tables: `KDA + MoE`."""
        return f"{'MLA' if self.mla else 'KDA'} + {'MoE' if self.moe else 'dense'}"


class Weights(NamedTuple):
    """The weights of one rank, see the module for shapes; of all ranks with a first axis of ranks.

    Arrays of numpy or JAX, or references to them within a kernel.
    """

    dense: Any
    vectors: Any
    experts: Any
    embedding: Any


@dataclass(frozen=True)
class Layout:
    """How a model lies on a mesh.

    Attributes:
      config: the model; its experts must be MXFP4.
      mesh: the ranks.
      expert_format: of the experts in memory.
      tile_rows: rows of a tile of the dense stream; 0 for the default: a panel of the hidden size
        (1.75 MiB for K3, the best size found), at least 512.

    Raises:
      LayoutError: the model cannot be divided so, or a setting is not possible.
    """

    config: ModelConfig
    mesh: Mesh
    expert_format: ExpertFormat = ExpertFormat.MXFP4
    tile_rows: int = 0

    def __post_init__(self) -> None:
        self.mesh.check(self.config)
        if not self.config.quantized_experts:
            raise LayoutError("layout: expected a model with MXFP4 experts, found dense experts")
        every = [m for layer in self.layer_of_kind.values() for m in self.matrices(layer, 0)]
        rows = tile_rows("layout", self.tile_rows, self.config.hidden_size, every)
        object.__setattr__(self, "tile_rows", rows)

    # Shapes.

    def kind(self, layer: int) -> LayerKind:
        """The kind of 0-based `layer`."""
        return LayerKind(self.config.is_mla(layer), self.config.is_moe(layer))

    @cached_property
    def layer_of_kind(self) -> dict[LayerKind, int]:
        """All kinds, each with its first layer."""
        found: dict[LayerKind, int] = {}
        for layer in range(self.config.num_hidden_layers):
            found.setdefault(self.kind(layer), layer)
        return found

    @cached_property
    def streams(self) -> dict[LayerKind, Stream]:
        """The dense stream of every kind of layer."""
        return {
            kind: join(self.attention_streams[kind.mla], self.feed_forward_streams[kind.moe])
            for kind in self.layer_of_kind
        }

    @cached_property
    def attention_streams(self) -> dict[bool, Stream]:
        """The first half of the stream of a layer, by `LayerKind.mla`."""
        kinds = {kind.mla for kind in self.layer_of_kind}
        return {
            mla: cut(slices.attention_matrices(self.config, self.mesh, 0, mla), self.tile_rows)
            for mla in sorted(kinds)
        }

    @cached_property
    def feed_forward_streams(self) -> dict[bool, Stream]:
        """The second half, by `LayerKind.moe`; it fits behind every first half.

        It starts at the same row after either kind of attention: one program serves both.
        """
        before = tuple(self.attention_streams.values())
        kinds = {kind.moe for kind in self.layer_of_kind}
        found = {m: slices.feed_forward_matrices(self.config, self.mesh, 0, m) for m in kinds}
        return {m: cut_behind(before, found[m], self.tile_rows) for m in sorted(kinds)}

    @cached_property
    def head_stream(self) -> Stream:
        """The dense stream behind the last layer."""
        return cut((slices.head_matrix(self.config, self.mesh, 0),), self.tile_rows)

    @cached_property
    def first_tiles(self) -> tuple[int, ...]:
        """First tile of each layer, of the head, and the number of all tiles."""
        layers = range(self.config.num_hidden_layers)
        counts = [*(self.streams[self.kind(i)].tiles for i in layers), self.head_stream.tiles]
        return (0, *(int(n) for n in np.cumsum(counts)))

    @property
    def tiles(self) -> int:
        """All tiles of the dense stream."""
        return self.first_tiles[-1]

    @cached_property
    def moe_layers(self) -> tuple[int, ...]:
        """Layers with experts."""
        c = self.config
        return tuple(i for i in range(c.num_hidden_layers) if c.is_moe(i))

    @property
    def local_experts(self) -> int:
        """Experts of a layer on one rank."""
        return self.config.num_experts // self.mesh.expert_parallel

    @cached_property
    def expert_block(self) -> ExpertBlock:
        """The form of an expert."""
        c = self.config
        width = c.moe_intermediate_size // self.mesh.tensor_parallel
        return ExpertBlock(self.expert_format, c.routed_expert_hidden_size, width)

    @cached_property
    def vector_rows(self) -> int:
        """Rows of a layer's vectors: the most that any kind of layer, or the output, needs."""
        kinds = [self.layer_vectors(i, 0) for i in self.layer_of_kind.values()]
        kinds.append(vectors.output_vectors(self.config))
        return max(vectors.total_rows(v) for v in kinds)

    @property
    def embedding_words(self) -> int:
        """Words of a row of the embedding."""
        return packed_words(self.mesh.local(self.config.hidden_size))

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the arrays of `Weights`, by name."""
        experts = len(self.moe_layers) * self.local_experts
        return {
            "dense": (self.tiles, self.tile_rows, LANES),
            "vectors": (self.config.num_hidden_layers + 1, self.vector_rows, LANES),
            "experts": (experts, self.expert_block.rows, LANES),
            "embedding": (self.config.vocab_size, self.embedding_words),
        }

    # What a rank holds.

    def matrices(self, layer: int, rank: int) -> tuple[Matrix, ...]:
        """The dense matrices of a layer, in the order of the stream."""
        return slices.layer_matrices(self.config, self.mesh, rank, layer)

    def layer_vectors(self, layer: int, rank: int) -> tuple[vectors.Vector, ...]:
        """The vectors of a layer, in the order of the array."""
        return vectors.layer_vectors(self.config, self.mesh, rank, layer)

    def expert_position(self, layer: int, expert: int) -> int:
        """Where the block of an expert lies in the expert array of its owner."""
        return self.moe_layers.index(layer) * self.local_experts + self.mesh.local_expert(expert)

    # Packing; `loading.parts` does the rest. `tensors` has the published names.

    def pack_vectors(self, tensors: Tensors, layer: int | None, rank: int) -> vectors.F32:
        """The vectors of a layer; None for the output's."""
        if layer is None:
            found, prefix = vectors.output_vectors(self.config), TARGET_PREFIX
        else:
            found, prefix = self.layer_vectors(layer, rank), layer_prefix(layer)

        return vectors.pack_vectors(found, self.vector_rows, floats_reader(tensors, prefix))

    def embedding_rows(self, table: Array, rank: int) -> U32:
        """The rank's columns of some rows of the embedding table."""
        columns = slice(*self.mesh.span(self.config.hidden_size, rank))
        words = pack_bf16(bfloat16_bits(EMBEDDING, table[:, columns]))
        return pad(words, len(table), self.embedding_words)


def layer_prefix(layer: int) -> str:
    """What precedes the names of a layer's tensors."""
    return f"{TARGET_PREFIX}model.layers.{layer}."


def get(tensors: Tensors, name: str) -> Array:
    """A tensor. Raises CheckpointError if it is missing."""
    try:
        return tensors[name]
    except KeyError:
        raise CheckpointError(f"{name}: missing in the checkpoint") from None


def floats_reader(tensors: Tensors, prefix: str) -> Callable[[str], vectors.F32]:
    """Gives the float32 values of the tensors whose names begin with `prefix`."""
    return lambda name: exact_float32(prefix + name, get(tensors, prefix + name))


def bits_reader(tensors: Tensors, prefix: str) -> Callable[[Piece], U16]:
    """Gives the bfloat16 bits of a piece of the tensors whose names begin with `prefix`."""

    def read(piece: Piece) -> U16:
        name = prefix + piece.tensor
        value = get(tensors, name)[slice(*piece.rows), slice(*piece.cols)]
        return bfloat16_bits(name, value)

    return read
