"""Which experts a layer touches: the list that a rank makes, and how long it is to be expected.

All ranks wait for the one with the most experts, so the slowest group's number counts. Estimates by
drawing routes with a fixed seed: for independent tokens, uniform, or with some experts preferred.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kimi.config import ModelConfig
from kimi.kernels.mesh import Mesh

_DRAWS = 400
_SEED = 0


class ListRow(IntEnum):
    """Rows of a list of experts, float32 [16, slots] with an expert in every lane.

    The first eight are the weights of rows 0 to 7, 0 where a row did not choose the expert.

    EXPERT: id; 0 behind the last expert.
    ROWS: bit r is set if row r chose it.
    EXPERTS: how many experts there are, in every lane.
    PAIRS: how many turns they take two rows at a time: the sum of ceil(rows / 2), in every lane.
    """

    EXPERT = 8
    ROWS = 9
    EXPERTS = 10
    PAIRS = 11

    SIZE = 16


@dataclass(frozen=True)
class Load:
    """Distinct experts that one layer uses in one step, on average.

    Attributes:
      total: over all groups.
      slowest: in the group that has the most.
    """

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
def _draw(experts: int, chosen: int, rows: int, skew: float) -> npt.NDArray[np.bool_]:
    """Which experts are used at all, [draws, experts]."""
    rng = np.random.default_rng(_SEED)
    used = np.zeros((_DRAWS, experts), bool)
    for draw in used:
        popularity = rng.permutation(-skew * np.log(np.arange(1, experts + 1)))
        # The largest k of log-popularity plus Gumbel noise are a draw without replacement.
        keys = popularity + rng.gumbel(size=(rows, experts))
        draw[np.argpartition(keys, -chosen, axis=1)[:, -chosen:]] = True
    return used
