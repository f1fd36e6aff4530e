"""What the program of a layer is given."""

from dataclasses import dataclass

from jax import Array

from kimi.config import ModelConfig
from kimi.kernels.layer_table import Column
from kimi.kernels.layout import LayerKind
from kimi.kernels.plan import Plan
from kimi.prefill.collectives import Collectives
from kimi.prefill.matrices import Tiles
from kimi.prefill.mixing import Vectors


@dataclass(frozen=True)
class Span:
    """The tokens of a chunk.

    Attributes:
      start: [] int32, position of the first one.
      count: [] int32, how many are valid, the first ones; the others leave no trace.
    """

    start: Array
    count: Array


@dataclass(frozen=True)
class OnRank:
    """A program on one rank.

    Attributes:
      plan: of the decode kernel.
      interpret: True without a TPU.
    """

    plan: Plan
    interpret: bool

    @property
    def config(self) -> ModelConfig:
        """The model's."""
        return self.plan.layout.config

    @property
    def collectives(self) -> Collectives:
        """Collectives of the ranks."""
        return Collectives(self.plan.layout.mesh.ranks)


@dataclass(frozen=True)
class Layer(OnRank):
    """A layer on one rank.

    Attributes:
      kind: what the layer is.
      row: int32 [columns], the layer's row of `layer_table`.
      dense: all dense weights of the rank.
      vectors: the layer's.
      span: the tokens.
    """

    kind: LayerKind
    row: Array
    dense: Array
    vectors: Vectors
    span: Span

    def __getitem__(self, column: Column) -> Array:
        return self.row[column]

    @property
    def attention(self) -> Tiles:
        """Dense weights of the attention."""
        stream = self.plan.layout.attention_streams[self.kind.mla]
        return Tiles.of(self.dense, stream, self[Column.ATTENTION_TILE])

    @property
    def feed_forward(self) -> Tiles:
        """Dense weights of the feed-forward part."""
        stream = self.plan.layout.feed_forward_streams[self.kind.moe]
        return Tiles.of(self.dense, stream, self[Column.FEED_TILE])

    @property
    def betas(self) -> tuple[float, float]:
        """Of SiTU."""
        return self.config.activation_situ_beta, self.config.activation_situ_linear_beta
