"""What a step moves from HBM by hand arithmetic, and how many experts it is expected to use.

All ranks wait for the one with the most experts, so the slowest group's number counts. Estimates by
drawing routes with a fixed seed: for independent tokens, uniform, or with some experts preferred.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kimi.config import ModelConfig
from kimi.kernels.chip import LANES, ROW_BYTES, WORD_BYTES
from kimi.kernels.layout import Layout
from kimi.kernels.mesh import Mesh
from kimi.kernels.records import KdaRecord, LatentCache, Rows

_DRAWS = 400
_SEED = 0


@dataclass(frozen=True)
class Load:
    """Distinct experts that a layer uses in a step on average: of all groups, of the fullest."""

    total: float
    slowest: float


def expert_load(config: ModelConfig, mesh: Mesh, rows: int, skew: float = 0.0) -> Load:
    """The average load of `rows` independent tokens.

    Args:
      skew: popularity of the k-th most popular expert is proportional to k^-skew; which experts
        are popular is random. 0 is uniform. Rows of one sequence share experts, so real loads are
        smaller than these.
    """
    used = _draw(config.num_experts, config.num_experts_per_token, rows, skew)
    groups = mesh.owner(np.arange(config.num_experts))
    per_group = np.stack([used[:, groups == g].sum(1) for g in range(mesh.expert_parallel)])
    return Load(float(per_group.sum(0).mean()), float(per_group.max(0).mean()))


@lru_cache(maxsize=16)
def _draw(experts: int, chosen: int, rows: int, skew: float) -> np.ndarray:
    """Which experts are used at all, [draws, experts]."""
    rng = np.random.default_rng(_SEED)
    used = np.zeros((_DRAWS, experts), bool)
    for draw in used:
        popularity = rng.permutation(-skew * np.log(np.arange(1, experts + 1)))
        # The largest k of log-popularity plus Gumbel noise are a draw without replacement.
        keys = popularity + rng.gumbel(size=(rows, experts))
        draw[np.argpartition(keys, -chosen, axis=1)[:, -chosen:]] = True
    return used


@dataclass(frozen=True)
class StepBytes:
    """HBM bytes that one rank, the slowest, moves in one step.

    Attributes:
      dense: all tiles of the dense stream.
      small: vectors, states of the KDA layers (read and written), an embedding row per token.
      cache: of the MLA layers, which every rank reads whole.
      experts: of the fullest expert group.
    """

    dense: int
    small: int
    cache: int
    experts: int

    @property
    def total(self) -> int:
        return self.dense + self.small + self.cache + self.experts


def step_bytes(layout: Layout, rows: int, context: int, load: Load) -> StepBytes:
    """The traffic of one step of a block of `rows` tokens behind `context` cached ones."""
    c = layout.config
    vectors = (c.num_hidden_layers + 1) * layout.vector_rows * ROW_BYTES
    states = 2 * len(c.kda_layers) * KdaRecord.of(layout, Rows(rows)).total * ROW_BYTES
    rows_read = rows * layout.embedding_words * WORD_BYTES
    cache = len(c.mla_layers) * context * LatentCache.of(layout, 1, LANES, Rows(1)).words
    experts = len(layout.moe_layers) * load.slowest * layout.expert_block.nbytes
    return StepBytes(
        dense_tile_bytes(layout), vectors + states + rows_read, cache * WORD_BYTES, round(experts)
    )


def dense_tile_bytes(layout: Layout) -> int:
    """Bytes of the dense stream of one rank, padding included."""
    return layout.first_tiles[-1] * layout.tile_rows * ROW_BYTES


def dense_payload(layout: Layout) -> Counter[str]:
    """bfloat16 bytes of the dense stream of one rank by the name of the matrix, without padding."""
    kinds = [layout.streams[layout.kind(i)] for i in range(layout.config.num_hidden_layers)]
    found: Counter[str] = Counter()
    for matrix in (m for s in (*kinds, layout.head_stream) for m in s.matrices):
        found[matrix.name.rstrip("_0123456789")] += matrix.inputs * matrix.outputs * 2
    return found
